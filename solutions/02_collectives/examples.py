"""The docstrings' examples of chapter 2, made of the first trials: tools/answers.py."""


def whole(tensor):
    return str([int(number) for number in tensor])


def brought(inputs):
    return [f"rank {rank} brings {whole(tensor)}" for rank, (tensor, *_) in enumerate(inputs)]


def returned(answers):
    return [f"rank {rank} returns {whole(answer['returned'])}" for rank, answer in enumerate(answers)]


EXAMPLES = {
    "2.1": lambda inputs, answers: brought(inputs) + returned(answers),
    "2.2": lambda inputs, answers: [*brought(inputs), f"both return {whole(answers[0]['returned'])}"],
    "2.3": lambda inputs, answers: ["rank 0 has {}, rank 1 has {}".format(*(whole(tensor) for tensor, in inputs)),
                                    f"both have {whole(answers[0]['tensor'])}"],
    "2.4": lambda inputs, answers: [
        "dst = {}: they have {}, {}, {}".format(inputs[0][1], *(whole(tensor) for tensor, _ in inputs)),
        f"rank 1 ends with {whole(answers[1]['tensor'])}"],
    "2.5": lambda inputs, answers: brought(inputs) + returned(answers),
    "2.6": lambda inputs, answers: [" ".join(["The ranks have", *(whole(tensor) for tensor, in inputs)]),
                                    f"{whole(answers[0]['tensor'])} everywhere"],
    "2.7": lambda inputs, answers: f"-> {answers[0][0]:,.0f} bytes",
    "2.8": lambda inputs, answers: f"over a card  -> {answers[0]['value']:g}".replace("  ", " "),
}
