"""The docstrings' examples of chapter 7, made of the first trials: tools/answers.py."""


def nested(tensor):
    return str(tensor.tolist()).replace(".0", ".")


def work(positions, lengths):
    """How many tokens those at `positions` read together."""
    reads = [token + 1 for length in lengths for token in range(length)]
    return sum(reads[position] for position in positions.tolist())


EXAMPLES = {
    "7.1": lambda inputs, answers: [
        "x {} and {}: gather gives {} on both".format(
            *(nested(rank["x"]) for rank in inputs), nested(answers[0]["gathered"])
        ),
        "scatter of {} on rank 0 and {} on rank 1: {} and {}".format(
            *(nested((rank["w"] * answer["gathered"]).exp().round()) for rank, answer in zip(inputs, answers)),
            *(nested(answer["scattered"].round(decimals=6)) for answer in answers),
        ),
    ],
    "7.2": lambda inputs, answers: (
        "out {:g}. and {:g}., lse log {:.0f} and log {:.0f}".format(
            *(rank["out"].item() for rank in inputs), *(rank["lse"].exp().item() for rank in inputs)
        )
        + ": out = 3/4 * 1 + 1/4 * 5 = {:.0f}, lse = log {:.0f}".format(
            answers[0]["out"].item(), answers[0]["lse"].exp().item()
        )
    ),
    "7.3": lambda inputs, answers: (
        "documents of {0} and {1} tokens: tokens 0 to {2} read 1 to {0} and then 1 to {1} "
        "tokens, so {3} for each rank".format(
            *inputs[0][0], sum(inputs[0][0]) - 1, *{work(answer["returned"], inputs[0][0]) for answer in answers}
        )
    ),
    "7.4": lambda inputs, answers: [
        "Three ranks with blocks {}, {}, {}".format(*(nested(rank["block"]) for rank in inputs)),
        "rank 0 uses those of ranks {}, {}, {}".format(*(source for source, _ in answers[0]["used"])),
        "rank 1 those of ranks {}, {}, {}".format(*(source for source, _ in answers[1]["used"])),
    ],
    "7.5": lambda inputs, answers: (
        "{} tokens with {} numbers: {} bytes are kept of it, function runs {} times".format(
            *inputs[0]["given"]["x"].shape, inputs[0]["given"]["x"].nbytes, answers[0]["runs"]
        )
    ),
    "7.6": lambda inputs, answers: [
        "n = {}, h = {}, f = {}, H = {}, K = {}, t = {}, without sequence parallelism".format(*inputs[0][:-1]),
        f"= {answers[0]['value']:g} bytes",
    ],
    "7.7": lambda inputs, answers: [
        "Two ranks with tokens {}, {} and {}, {}, q all 0, v 1, 2, 3, 4 in the row".format(
            *(token for positions in inputs[0]["positions"] for token in positions.tolist())
        ),
        "rank 0 gets {:g}., {:g}, rank 1 gets {:g}, {:g}.".format(
            *(token for answer in answers for token in answer["y"][0, 0, :, 0].tolist())
        ),
    ],
    "7.8": lambda inputs, answers: [
        "T = {}, u = {}, R = {}, H = {}, K = {}, d = {}, {} FLOP/s, {} and {} bytes/s:".format(*inputs[0]),
        f"= {answers[0]['value']:g} s",
    ],
}
