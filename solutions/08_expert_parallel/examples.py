"""The docstrings' examples of chapter 8, made of the first trials: tools/answers.py."""


def short(number):
    """As the docstrings write numbers: .5 and 2."""
    text = f"{number:.6g}"
    return text.removeprefix("0") if text.startswith("0.") else text


def row(numbers, mark="|"):
    """In two groups."""
    half = len(numbers) // 2
    first, second = (" ".join(map(short, part)) for part in (numbers[:half], numbers[half:]))
    return f"{first} {mark} {second}"


def listed(numbers):
    return f"[{', '.join(map(short, numbers))}]"


def row_names(tokens, rows):
    """Of each row, the token that lies there."""
    names = {tuple(token): f"token {place}" for place, token in enumerate(tokens.tolist())}
    return ", ".join(names.get(tuple(own), "zeros") for own in rows.tolist())


def example_of_gate(inputs, answers):
    k, G, scale = inputs[0]["numbers"]
    weights = answers[0]["y"][0].tolist()
    chosen = [expert for expert, weight in enumerate(weights) if weight]
    return (
        f"scores {row(inputs[0]['given']['logits'].sigmoid()[0].tolist())}, bias {row(inputs[0]['bias'].tolist())}, "
        f"k = {k}, G = {G}, scale {scale}: experts {chosen[0]} and {chosen[1]}, "
        f"weights {short(weights[chosen[0]])} and {short(weights[chosen[1]])}"
    )


def example_of_losses(inputs, answers):
    shares = [rank["given"]["logits"].softmax(-1) for rank in inputs]
    P = [each.mean(0).view(2, -1).sum(1).tolist() for each in shares]
    counts = sum((each.argmax(1) // 2).bincount(minlength=2) for each in shares)
    f = (counts / counts.sum()).tolist()
    first, second = (" and ".join(row(token) for token in each.tolist()) for each in shares)
    return [
        f"k = {inputs[0]['k']}; softmax {first} on rank 0, {second} on rank 1",
        f"f = [{counts[0]}/{counts.sum()}, {counts[1]}/{counts.sum()}] on both; P = {listed(P[0])} on rank 0",
        f"loss 2 ({short(f[0] * P[0][0])} + {short(f[1] * P[0][1])}) = {short(answers[0]['y'].item())}",
        f"P = {listed(P[1])} on rank 1, loss {short(answers[1]['y'].item())}",
    ]


def example_of_kept(inputs, answers):
    experts, weights, protected, E, R, C = inputs[0]
    kept = answers[0]["returned"].flatten().nonzero().flatten().tolist()
    return [
        f"experts {' '.join(map(str, experts.flatten().tolist()))} of four on two ranks",
        f"weights {' '.join(map(short, weights.flatten().tolist()))}, token {protected.nonzero().item()} protected",
        f"capacity {C}: tokens {kept[0]}, {kept[1]} and {kept[2]} are kept",
    ]


EXAMPLES = {
    "8.1": example_of_gate,
    "8.2": lambda inputs, answers: (
        f"k = 1, experts {', '.join(map(str, inputs[0]['experts'].flatten().tolist()))}, two experts, "
        f"block {inputs[0]['numbers'][1]}: rows = {row_names(inputs[0]['given']['tokens'], answers[0]['rows'])}"
    ),
    "8.3": lambda inputs, answers: [
        "rank 0's goes to experts {}, {} and {}".format(*inputs[0]["choices"][0].nonzero().flatten().tolist()),
        "rank 1's to expert {}".format(*inputs[1]["choices"][0].nonzero().flatten().tolist()),
        f"rank 0 receives both, theirs {answers[0]['theirs'].tolist()}",
        f"rank 1 receives rank 0's, theirs {answers[1]['theirs'].tolist()}",
    ],
    "8.4": example_of_losses,
    "8.5": example_of_kept,
    "8.6": lambda inputs, answers: (
        f"Four experts, two ranks of two slots, batches {inputs[0]['loads'][0]} and {inputs[0]['loads'][1]}: "
        f"{answers[0]} has score 1"
    ),
    "8.7": lambda inputs, answers: [
        f"{inputs[0]['num_tokens']} and {inputs[1]['num_tokens']} tokens",
        "The experts' gradients, {} and {}, become {} and {}".format(
            *(short(rank["gradients"][0].item()) for rank in inputs),
            *(short(answer["experts"][0].item()) for answer in answers),
        ),
        "The router's, {} and {}, become {} on both".format(
            *(listed(rank["router"].flatten().tolist()) for rank in inputs),
            *{listed(answer["router"].flatten().tolist()) for answer in answers},
        ),
    ],
    "8.8": lambda inputs, answers: [
        "k = {}, one shared, m = {}, G = {}, {} bytes out and {} home, {} FLOP/s, {} bytes/s".format(
            *inputs[0][:1], *inputs[0][2:]
        ),
        f"so F = {short(answers[0]['value'])}",
    ],
}
