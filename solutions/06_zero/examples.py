"""The docstrings' examples of chapter 6, made of the first trials: tools/answers.py."""


def shown(tensor):
    return str(tensor.tolist()).replace(".0", ".")


def rounded(tensor):
    return str([round(number, 10) for number in tensor.tolist()])


def slopes(inputs):
    """The gradient of the mean of (b - y)^2 at b = 0, for each rank."""
    return [(-2 * rank["batches"][0][1].mean(0) / rank["batches"][0][1].shape[1]) for rank in inputs]


EXAMPLES = {
    "6.1": lambda inputs, answers: [
        "{} elements on {} ranks: pieces of 3 + 1 elements".format(*inputs[0]),
        "In bf16 with AdamW at stage {2}: 13 ({3} + {4}) + 4 * {5} = {0} bytes".format(
            answers[0]["value"], *inputs[0][1:]
        ),
    ],
    "6.2": lambda inputs, answers: [
        f"Two ranks, weights {shown(inputs[0]['weights'])}, a gradient that is always {inputs[0]['gradient']}, "
        "lr = eps = 0.1, weight_decay = 0.5",
        f"num_decayed = {inputs[0]['num_decayed']}: all of rank 0's piece decay, and one of rank 1's",
        f"after one step {rounded(answers[1]['weights'])} on both",
    ],
    "6.3": lambda inputs, answers: [
        "the bias of layer 0 has a .grad of {} on rank 0 and {} on rank 1, the mean is 2".format(
            *map(shown, slopes(inputs))
        ),
        'pieces["0.bias"] is {} on rank 0, {} on rank 1'.format(
            *(shown(answer["pieces"]["0.bias"]) for answer in answers)
        ),
    ],
    "6.4": lambda inputs, answers: "Two ranks, a weight {}: rank 0 keeps {} and rank 1 {}".format(
        shown(inputs[0]["weights"]["0.weight"]), *(shown(answer["pieces"]["0.weight"]) for answer in answers)
    ),
    "6.5": lambda inputs, answers: [
        f"One rank, a weight of {inputs[0]['weights'].item()}, a gradient that is always {inputs[0]['gradient']:g}, "
        "lr = 0.001",
        f"after ten master {answers[0]['master'].item():.3f}, weight {answers[0]['weights'].item():.4f}",
    ],
    "6.6": lambda inputs, answers: "pieces {} on rank 0, {} on rank 1, max_norm = {:g}: both return {:g}.".format(
        *(shown(rank["pieces"][0]) for rank in inputs), inputs[0]["max_norm"], answers[0]["norm"]
    )
    + ", and have {} and {}".format(*(rounded(answer["pieces"][0]) for answer in answers)),
    "6.7": lambda inputs, answers: [
        "a weight {} whose gradient is {:g} on rank 0 and {:g} on rank 1, lr = 0.1 and eps = 0.1".format(
            shown(inputs[0]["weights"]["0.weight"]), *(slope.item() for slope in slopes(inputs))
        ),
        f"rank 0's piece is -0.1 * 2 / (2 + 0.1) = {answers[0]['pieces'][0].item():.4f} afterwards",
        f"rank 1's is all filling up, {answers[1]['pieces'][0].item():g}",
    ],
    "6.8": lambda inputs, answers: [
        "{:,} tokens, {} FLOP/s, {} in a node, {} bytes/s inside, {} bytes/s a card, weights of {} byte, gradients of "
        "{}".format(*inputs[0]),
        f"backward {answers[0]['value']:.1f}, so {answers[0]['value']:.1f}, or {int(answers[0]['value'])}",
    ],
}
