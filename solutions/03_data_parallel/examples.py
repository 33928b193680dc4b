"""The docstrings' examples of chapter 3, made of the first trials: tools/answers.py."""


def listed(tensor):
    return str(tensor.tolist()).replace(".0", ".")


EXAMPLES = {
    "3.1": lambda inputs, answers: [
        "rank 0 has {} rows and .grad {}, rank 1 has {} row and .grad {}".format(*(
            part for rank in inputs for part in (len(rank["batches"][0][0]), listed(rank["given"]["0.weight"][0])))),
        f"afterwards it is {listed(answers[0]['gradients']['0.weight'][0])} on both"],
    "3.2": lambda inputs, answers: f"sizes_bytes = {inputs[0][0]}, cap_bytes = {inputs[0][1]} -> {answers[0]}",
    "3.3": lambda inputs, answers: [
        f"rank 0 has {listed(inputs[0]['given']['0.weight'])} and {listed(inputs[0]['given']['0.bias'])}",
        "afterwards both have {} and {}".format(*map(listed, answers[0]["gradients"].values()))],
    "3.4": lambda inputs, answers: (
        "{} rows whose gradient would be [1.] and then {} row with [5.]: afterwards .grad is {}".format(
            *(len(x) for x, _ in inputs[0]["batches"]), listed(answers[0]["gradients"]["0.weight"][0]))),
    "3.5": lambda inputs, answers: [
        f"rank 0 has {listed(inputs[0]['given'][0])}, rank 1 has {listed(inputs[1]['given'][0])}",
        "both return {}; still owed: {} on rank 0, {} on rank 1".format(
            *map(listed, answers[0]["steps"].values()), listed(answers[1]["steps"]["the residual after step 0"]))],
    "3.6": lambda inputs, answers: [
        f"num_samples = {inputs[0]['num_samples']}, world_size = {inputs[0]['world_size']}",
        "rank 0 gets [3, 4, 2], rank 1 gets [0, 1]" if [len(each["shards"][0]) for each in answers] == [3, 2] else "no",
    ],
    "3.7": lambda inputs, answers: "its gradients [1.] and [3.] leave {} on both".format(
        listed(answers[0]["gradients"]["0.weight"][0])),
    "3.8": lambda inputs, answers: (
        "{:.0e} parameters in {} buckets, n = {}, {:.0e} FLOP/s, alpha {:.0e} s, beta {:.0e} s a byte, sequences of "
        "{:,} tokens".format(*inputs[0]).replace("e+0", "e").replace("e+", "e").replace("e-0", "e-") +
        f": the messages take 0.02 + 4 s, as long as backward of 100,500 tokens -> {answers[0]['value']}"),
    "3.9": lambda inputs, answers: "The number of devices",
}
