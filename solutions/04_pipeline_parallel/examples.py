"""The docstrings' examples of chapter 4, made of the first trials: tools/answers.py."""


def quoted(names):
    return str(names).replace("'", '"')


def halves(tensor):
    return str(tensor.tolist()).replace(".0", ".")


EXAMPLES = {
    "4.1": lambda inputs, answers: [
        f"costs = {inputs[0][0]}, the layers' costs in the model's order; {inputs[0][1]} stages",
        f"{answers[0]} has 9, 8 and 7",
    ],
    "4.2": lambda inputs, answers: (
        f"m = {inputs[0][2]}, g = {inputs[0][3]}, on either rank of the picture: {quoted(answers[0])}"
    ),
    "4.3": lambda inputs, answers: (
        f"{inputs[0][0]}, {inputs[0][1]} micro-batches: the step takes 3, each rank works for 2: "
        f"1/{1 / answers[0]['value']:.0f} of the total"
    ),
    "4.4": lambda inputs, answers: "p = {}, m = {}: rank 0 has {}, rank 1 has {}".format(
        *inputs[0][1:], *map(quoted, answers)
    ),
    "4.5": lambda inputs, answers: [
        f"both have {halves(answers[0]['gradients']['weight'])}",
        f"gradients are [1.] and [3.] leave {halves(answers[1]['gradients']['bias'])} in .grad",
    ],
    "4.6": lambda inputs, answers: f"One rank, two micro-batches: {quoted(answers[0])} is never idle",
    "4.7": lambda inputs, answers: "p = {}, m = {}, v = {}: rank 1 has {}".format(*inputs[0][1:], quoted(answers[1])),
    "4.8": lambda inputs, answers: [
        "{} devices, {} sequences, {} GB of state, {} GB a sequence, {} GB a device, k = {}".format(*inputs[0]),
        "so ({}, {})".format(*answers[0]),
    ],
    "4.9": lambda inputs, answers: (
        "{} devices, tensor_parallel={}, {} stages, {} chunk, {} tokens, idle={}: two replicas, m = 3, ".format(
            *inputs[0]
        )
        + f"{answers[0]['value']} tokens"
    ),
}
