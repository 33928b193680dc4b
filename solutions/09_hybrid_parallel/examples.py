"""The docstrings' examples of chapter 9, made of the first trials: tools/answers.py."""


def quoted(value):
    return str(value).replace("'", '"')


def text_of(sizes):
    return " ".join(f"{axis}{size}" for axis, size in sizes.items() if size > 1)


def shown(tensor):
    return str(tensor.tolist()).replace(".0", ".")


def numbers(inputs):
    """The numbers of what the files of 9.5 have."""
    corners = inputs[0]["saved"]
    return [number for file in sorted(corners, key=corners.get) for number in inputs[0]["contents"][file].tolist()]


def save_interval(inputs, answers):
    devices, hours, parameters, copies, storage, _ = inputs[0]
    between, state = 3600 * hours / devices, 12 * parameters
    write, copy = state / storage, state / devices / copies
    return [
        f"{devices} devices, {hours} hours, {parameters:.0e} parameters, copies of {copies:.1e} bytes/s, storage of "
        f"{storage:.0e}: a failure every {between:,.0f} s".replace("e+0", "e"),
        f"the run waits for {write:.0f} s: {answers[0]['value']:.0f} s. Asynchronously it stops for {copy:.0f} s: "
        f"{(2 * copy * between) ** 0.5:.0f} s",
    ]


def cheapest_layout(inputs, answers):
    devices, _, memory, flops, fast, _, parameters, layers, hidden, tokens, rows = inputs[0]
    computing = 6 * parameters / 2 * tokens / flops * 1.25
    messages = 4 * layers * 2 / 2 * 2 * tokens * hidden / fast
    best = {key: answers[0]["layout"][key] for key in ("dp", "pp", "tp", "rows", "zero", "recompute")}
    lines = [
        f"{devices} devices on a node, {memory:g} bytes each, {flops:g} FLOP/s, fast {fast:g}; {parameters:g} "
        f"parameters in {layers} layers, hidden {hidden}; {rows} rows of {tokens} tokens",
        f"The best is {quoted(best)}: ({rows * (computing + messages):g}, "
        f"{16 * parameters / 2 + 34 * tokens * hidden * layers / 2:g})",
        f"{rows} * (6 * {parameters:g} / 2 * {tokens} / {flops:g} * 1.25 + 4 * {layers} * 2 / 2 * 2 * {tokens} * "
        f"{hidden} / {fast:g})",
    ]
    return [line.replace("e+0", "e").replace("e+", "e") for line in lines]


EXAMPLES = {
    "9.1": lambda inputs, answers: [
        f'Rank {inputs[0][0]} of {text_of(inputs[0][1])} under "{inputs[0][2]}"',
        f'Under "{inputs[0][3]}" that is rank 2 + 3 * 1 + 3 * 2 * 1 = {answers[0]["value"]}',
    ],
    "9.2": lambda inputs, answers: [
        f'{quoted(inputs[0][0])} of {text_of(inputs[0][1])} under "{inputs[0][2]}", {inputs[0][3]} ranks a node',
        "inside {}, across {}".format(*answers[0]),
    ],
    "9.3": lambda inputs, answers: 'dp2, one number of kind "{}": {:g}. from {} tokens on rank 0, {:g}. from {} tokens '
    "on rank 1: (3 + 5) / 8 = {:g}. on both".format(
        inputs[0]["kinds"]["weight"],
        *(part for rank in inputs for part in (rank["gradients"]["weight"].item(), rank["num_tokens"])),
        answers[1]["gradients"]["weight"].item(),
    ),
    "9.4": lambda inputs, answers: [
        "dp2 tp2, norm {:g}, one `{}`: {} at tp 0, {} at tp 1, both at dp 0 and 1; one `{}`: {} everywhere".format(
            inputs[0]["norm_type"], inputs[0]["kinds"]["a"], *(shown(inputs[r]["gradients"]["a"]) for r in (0, 1)),
            inputs[0]["kinds"]["b"], shown(inputs[0]["gradients"]["b"]),
        ),
        f"(9 + 16 + 144) ** 0.5 = {answers[0]['value']:g}.",
    ],
    "9.5": lambda inputs, answers: [
        "The tensor is {}, saved is {}".format(
            str(numbers(inputs)).replace(".0", "."),
            quoted({file: tuple(box) for file, box in inputs[0]["saved"].items()}),
        ),
        "offsets {}, shape {}".format(inputs[0]["offsets"], inputs[0]["shape"]),
        f"so it returns {shown(answers[0]['returned'])}",
    ],
    "9.6": save_interval,
    "9.7": cheapest_layout,
}
