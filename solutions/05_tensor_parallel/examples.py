"""The docstrings' examples of chapter 5, made of the first trials: tools/answers.py."""

import math


def nested(tensor):
    """As the docstrings write it: whole numbers with a point behind them."""
    return str((tensor.round(decimals=6) + 0.0).tolist()).replace(".0,", ".,").replace(".0]", ".]")


def named(rows):
    """Of q, k and v, which have tens 1, 2 and 3."""
    return " ".join(f"{'qkv'[int(row) // 10 - 1]}{int(row) % 10}" for row in rows.flatten())


def added(tensors):
    """[1., 2.] + [3., 4.] = [4., 6.]"""
    return f"{' + '.join(map(nested, tensors))} = {nested(sum(tensors))}"


def row_parts(inputs):
    """Of each result: both ranks' products, the bias, the residual."""
    given = [rank["given"] for rank in inputs]
    products = [own["x"].flatten() @ own["weight"].chunk(2, 1)[r].T for r, own in enumerate(given)]
    parts = zip(*products, given[0]["bias"], given[0]["residual"].flatten())
    return ", ".join(" + ".join(f"{number:g}." for number in each) for each in parts)


def block(inputs, answers):
    first, second = (rank["given"] for rank in inputs)
    v = [own["qkv.weight"][2] for own in (first, second)]
    heads = [own @ first["x"].flatten().sign() for own in v]
    outputs = [head * own["output.weight"][:, 0] for head, own in zip(heads, (first, second))]
    a = first["x"].flatten() + sum(outputs) + first["output.bias"]
    ups = [own["up.weight"] @ a.sign() for own in (first, second)]
    downs = [own["down.weight"] @ up for own, up in zip((first, second), ups)]
    return [
        "one token, x {}, D = {}, head_dim = {};".format(
            nested(first["x"].flatten()), first["x"].shape[-1], inputs[0]["head_dim"]
        ),
        "of q and k 0, of v {} on rank 0 and {} on rank 1".format(*map(nested, v)),
        "heads [{:g}.] and [{:g}.]".format(*heads),
        "output {} and {}, bias {}: a = x + {} + {} + bias = {}".format(
            *(nested(own["output.weight"]) for own in (first, second)),
            nested(first["output.bias"]), *map(nested, outputs), nested(a),
        ),
        "four rows {} and four rows {}: four times {:g} and four times {:g}".format(
            *(nested(own["up.weight"][0]) for own in (first, second)), *(up[0] for up in ups)
        ),
        "{} everywhere, bias {}: y = a + {} + {} + bias = {} on both".format(
            first["down.weight"][0, 0], nested(first["down.bias"]), *map(nested, downs),
            nested(answers[0]["y"].flatten()),
        ),
        "dy {} on both: norm_1.bias.grad is [9., 0.] + [0., 20.] = {} on both".format(
            nested(inputs[0]["dy"].flatten()), nested(answers[1]["gradients"]["norm_1.bias"])
        ),
    ]


EXAMPLES = {
    "5.1": lambda inputs, answers: [
        "w = {:g} on rank 0 and {:g} on rank 1, y = g(w * (f(x) + x)) at x = {:g}, and dy = {:g}:".format(
            *(rank["w"].item() for rank in inputs), inputs[0]["x"].item(), inputs[0]["c"].item()
        ),
        "y is {:g} + {:g} = {:g} on both, w.grad is {:g} on both".format(
            *(answer["h"].item() for answer in answers), answers[0]["g"].item(), answers[1]["w"].item()
        ),
        "x.grad is {0:g} + {1:g} through f on both, and past f {0:g} on rank 0 and {1:g} on rank 1".format(
            *(rank["w"].item() for rank in inputs)
        ),
        "on rank 1: {:g} and {:g}".format(*(answer["x"].item() for answer in answers)),
    ],
    "5.2": lambda inputs, answers: [
        "one token, x {};".format(nested(inputs[0]["given"]["x"])),
        "gate {}, up {}".format(*(nested(inputs[0]["given"][name]) for name in ("gate", "up"))),
        "rank 0 returns {}, and rank 1 {}".format(*(nested(answer["y"]) for answer in answers)),
        "dy {} on both".format(nested(inputs[0]["dy"])),
        "it is {} on both".format(nested(answers[1]["gradients"]["x"])),
        "up.grad on rank 0 is {}".format(nested(answers[0]["gradients"]["up"])),
    ],
    "5.3": lambda inputs, answers: [
        "x {} and {}, weight {}, bias {}, residual {}".format(
            *(nested(rank["given"]["x"]) for rank in inputs),
            *(nested(inputs[0]["given"][name]) for name in ("weight", "bias", "residual")),
        ),
        f"both return [[[{row_parts(inputs)}]]] = {nested(answers[0]['y'])}",
        "dy {}: bias.grad is {} on both, weight.grad {} and {}".format(
            nested(inputs[0]["dy"]), nested(answers[1]["gradients"]["bias"]),
            *(nested(answer["gradients"]["weight"]) for answer in answers),
        ),
    ],
    "5.4": lambda inputs, answers: [
        "H = {}, K = {}, d = 1, D = 1, rows named {}".format(*inputs[0]["heads"], named(inputs[0]["weight"])),
        "weight {}".format(nested(inputs[0]["weight"])),
        "on 2 ranks rank 0 {}: {} rank 1 {}".format(
            named(answers[0]["returned"]), nested(answers[0]["returned"]), named(answers[1]["returned"])
        ),
    ],
    "5.5": lambda inputs, answers: [
        "logits {} on both, so Z = 4; target {}, which is rank 1's first; c = {:g}:".format(
            nested(inputs[0]["logits"][0, 0]), inputs[0]["targets"].item(), inputs[0]["c"]
        ),
        "loss log {:.0f} on both; gradient {} on rank 0, {} on rank 1".format(
            math.exp(answers[0]["loss"]), *(nested(answer["gradient"][0, 0]) for answer in answers)
        ),
    ],
    "5.6": lambda inputs, answers: [
        "sliced {} on rank 0 and {} on rank 1, whole {} on both, partial {} on rank 0 and {} on rank 1".format(
            *(nested(rank["sliced"][0]) for rank in inputs), nested(inputs[0]["whole"][0]),
            *(nested(rank["partial"][0]) for rank in inputs),
        ),
        "= {:.2f} on both, and partial is {} on both".format(answers[0]["norm"], nested(answers[1]["partial"][0])),
    ],
    "5.7": block,
    "5.8": lambda inputs, answers: (
        "t = {}, {} in a node, {} FLOP/s, {} bytes/s inside, {} bytes/s per card, share = {}, {} bytes per number: "
        "h = {:g}".format(
            *inputs[0], answers[0]["value"]
        )
    ),
}
