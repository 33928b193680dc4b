"""The docstrings' examples of chapter 1, made of the first trials: tools/answers.py."""

EXAMPLES = {
    "1.1": lambda inputs, answers: "{:.1f}e9 parameters on {} devices: stage 0 -> {:.0f}e9".format(
        inputs[0][0] / 1e9, inputs[0][2], answers[0]["value"] / 1e9
    ),
    "1.2": lambda inputs, answers: (
        "{:.0f}e9 parameters, {:.0f}e9 tokens, {} devices of {} TFLOP/s at {} -> {:.3f} days".format(
            inputs[0][0] / 1e9, inputs[0][1] / 1e9, *inputs[0][2:], answers[0]["value"]
        )
    ),
    "1.3": lambda inputs, answers: (
        "{:.0f}e9 parameters, {:.0f}e6 tokens, {} s on {} devices of {:.0f}e12 FLOP/s -> {}".format(
            inputs[0][0] / 1e9, inputs[0][1] / 1e6, inputs[0][2], inputs[0][3], inputs[0][4] / 1e12, answers[0]["value"]
        )
    ),
    "1.4": lambda inputs, answers: "{} devices, {:g} s and {:g} s -> {:g}".format(*inputs[0], answers[0]["value"]),
    "1.5": lambda inputs, answers: [
        "tokens {}, s = {}, two ranks".format(" ".join(map(str, inputs[0][0].tolist())), inputs[0][1]),
        *(f"rank {rank} returns {answer['returned'].tolist()}" for rank, answer in enumerate(answers)),
    ],
    "1.6": lambda inputs, answers: "{:.2f}e9 parameters, {:.0f}e12 tokens, {} days at {} -> {}".format(
        inputs[0][0] / 1e9, inputs[0][1] / 1e12, *inputs[0][2:], answers[0]["value"]
    ),
}
