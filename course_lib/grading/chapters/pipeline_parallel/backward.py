"""Exercise 4.5: gradients travel from the last rank to the first, micro-batch by micro-batch.

    p  ranks, each with one stage      m  micro-batches of B rows      D  width of every layer

Everything is float64, so that a sum in another order differs by less than TOLERANCE, and a mistake by far more.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.grading.exercise import Exercise, Traffic, Trial
from course_lib.grading.tensors import amount, plain

TOLERANCE = 1e-9
Gradients = list[dict[str, Any]]  # of each rank's stage, by the parameter's name


class PipelineBackward(Exercise):
    number = "4.5"
    function = "my_pipeline_backward"
    points = 3
    budget = "m messages of the size of one micro-batch's activations from each rank to the one before"
    operations = frozenset({"send", "recv"})
    hints = (
        "For each micro-batch three questions: where does the gradient of y come from, what does backward make of it, "
        "and who needs the gradient of x? And the loss of the batch is a mean over m micro-batches.",
        "On the last rank (nn.functional.mse_loss(y, targets[i]) / m).backward(). Elsewhere dist.recv(gradient, r + 1) "
        "into torch.empty_like(y), then y.backward(gradient). On all but the first dist.send(x.grad, r - 1).",
    )

    def trials(self, seed: int) -> list[Trial]:
        generator = torch.Generator().manual_seed(seed)

        def drawn(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        made = []
        for p, m, B, D in ((3, 4, 2, 3), (2, 1, 3, 2), (1, 2, 2, 2), (4, 3, 64, 48)):
            weights = [drawn(D, D) / D**0.5 for _ in range(p)]
            inputs = {"weights": weights, "x": [drawn(B, D) for _ in range(m)], "y": [drawn(B, D) for _ in range(m)]}
            label = f"{p} rank{'s' * (p > 1)}, {m} micro-batch{'es' * (m > 1)} of {amount(B * D * 8)}"
            made.append(Trial([{**inputs, "rank": r} for r in range(p)], label))
        return made

    @staticmethod
    def run(function: Callable, inputs: dict[str, Any]) -> dict[str, Any]:
        """What came in is computed here, so that all that is sent, the reader's function sends."""
        r = inputs["rank"]
        stages = stages_of(inputs)
        saved = []
        for x in inputs["x"]:
            with torch.no_grad():
                x = stages[:r](x)
            x = x.clone().requires_grad_(r > 0)
            saved.append((x, stages[r](x)))
        function(saved, [target.clone() for target in inputs["y"]] if r == len(stages) - 1 else None)
        return plain_gradients(stages[r])

    def judge(self, trial: Trial, answers: list[Any], traffic: Traffic) -> str | None:
        inputs = trial.inputs[0]
        p, m = trial.world_size, len(inputs["x"])
        given = [answer if type(answer) is dict else {} for answer in answers]
        if alike(given, expected(inputs, 1 / m)):
            return self.over_budget(trial, traffic)
        cause = next((cause for cause, gradients in self.mistakes(inputs) if alike(given, gradients)), None)
        wrong = [r for r in range(p) if not alike(given[r:r + 1], expected(inputs, 1 / m)[r:r + 1])]
        ranks = f"rank{'s' * (len(wrong) > 1)} {', '.join(map(str, wrong))}"
        told = cause or f"the gradients of {ranks} differ from those of one process with the whole batch"
        return f"{trial.label}: {told}"

    @staticmethod
    def mistakes(inputs: dict[str, Any]) -> Iterable[tuple[str, Gradients]]:
        p, m = len(inputs["weights"]), len(inputs["x"])
        yield ("every gradient is m times too large: backward adds up m means, and one mean is asked, so divide each "
               "loss by m", expected(inputs, 1.0))
        yield ("every rank divides by m, and what comes from the next rank is divided already: only the loss is, once",
               [scaled(gradients, m ** -(p - r)) for r, gradients in enumerate(expected(inputs, 1.0))])
        yield ("gradients are divided by m twice: the loss alone has to be", expected(inputs, 1 / m**2))
        yield ("only the last micro-batch is in the gradients: they add up by themselves, do not set them to zero",
               expected(inputs, 1 / m, [m - 1]))
        yield ("only the first micro-batch is in the gradients: all of `saved` has to go backward",
               expected(inputs, 1 / m, [0]))
        yield ("the micro-batches and their targets are taken in opposite orders",
               expected({**inputs, "y": inputs["y"][::-1]}, 1 / m))
        last = expected(inputs, 1 / m)
        yield ("only the last rank has gradients: the others receive theirs from the next rank",
               [dict.fromkeys(last[-1])] * (p - 1) + [last[-1]])
        if p > 1:
            yield ("the gradient that was received is not used: y.backward(gradient) takes it",
                   [*with_gradients(inputs, lambda i, y: torch.ones_like(y))[:-1], last[-1]])
            yield ("the gradient that was received is passed on as it is: the rank before needs that of x, which "
                   "backward has left in x.grad",
                   [*with_gradients(inputs, lambda i, y: for_the_last(inputs, i) / m)[:-1], last[-1]])

    def over_budget(self, trial: Trial, traffic: Traffic) -> str | None:
        bound = messages_bytes(trial)
        for r in range(trial.world_size):
            spent = traffic.sent_by(r)
            allowed = bound if r else 0
            if spent > allowed + traffic.slack(allowed):
                return (f"{trial.label}: the gradients are right, but rank {r} sent {amount(spent)}, where "
                        f"{amount(allowed)} will do: only the gradient of x travels, to the rank before")
            if spent < allowed - traffic.slack(allowed):
                return (f"{trial.label}: the gradients are right, but rank {r} sent {amount(spent)}, where "
                        f"{amount(allowed)} is the least that can carry them: send x.grad to the rank before")
        return None

    def figures(self, trial: Trial, traffic: Traffic) -> str:
        most = max(traffic.sent_by(rank) for rank in range(trial.world_size))
        bound = messages_bytes(trial)
        return f"{trial.label}: sent at most {amount(most)} a rank, {amount(bound)} allowed" if bound > 1 << 14 else ""


def messages_bytes(trial: Trial) -> int:
    """The gradients of all micro-batches at one boundary."""
    return sum(x.nbytes for x in trial.inputs[0]["x"])


def stages_of(inputs: dict[str, Any]) -> nn.Sequential:
    """Of each rank, a linear layer with tanh."""
    stages = []
    for weight in inputs["weights"]:
        linear = nn.Linear(*weight.shape, dtype=torch.float64)
        with torch.no_grad():
            linear.weight.copy_(weight)
            linear.bias.zero_()
        stages.append(nn.Sequential(linear, nn.Tanh()))
    return nn.Sequential(*stages)


def expected(inputs: dict[str, Any], scale: float, microbatches: Iterable[int] | None = None) -> Gradients:
    """Gradients of each rank's stage for the sum of the micro-batches' mean losses, times `scale`."""
    stages = stages_of(inputs)
    for i in range(len(inputs["x"])) if microbatches is None else microbatches:
        (scale * nn.functional.mse_loss(stages(inputs["x"][i]), inputs["y"][i])).backward()
    return [plain_gradients(stage) for stage in stages]


def with_gradients(inputs: dict[str, Any], gradient: Callable[[int, Tensor], Tensor]) -> Gradients:
    """Gradients of each stage if `gradient(micro-batch, y)` came back to it."""
    found = []
    for r in range(len(inputs["weights"])):
        stages = stages_of(inputs)
        for i, x in enumerate(inputs["x"]):
            with torch.no_grad():
                x = stages[:r](x)
            y = stages[r](x)
            y.backward(gradient(i, y))
        found.append(plain_gradients(stages[r]))
    return found


def for_the_last(inputs: dict[str, Any], i: int) -> Tensor:
    """The gradient of what comes into the last stage, for the mean loss of micro-batch i."""
    stages = stages_of(inputs)
    with torch.no_grad():
        x = stages[:-1](inputs["x"][i])
    x = x.clone().requires_grad_()
    nn.functional.mse_loss(stages[-1](x), inputs["y"][i]).backward()
    return x.grad


def plain_gradients(stage: nn.Module) -> dict[str, Any]:
    return {name: plain(parameter.grad) for name, parameter in stage.named_parameters()}


def scaled(gradients: dict[str, Any], factor: float) -> dict[str, Any]:
    return {name: gradient * factor for name, gradient in gradients.items()}


def alike(given: Gradients, other: Gradients) -> bool:
    """Whether all ranks have these gradients, None where they have none."""
    return len(given) == len(other) and all(
        mine.keys() == theirs.keys() and all(close(mine[name], theirs[name]) for name in theirs)
        for mine, theirs in zip(given, other))


def close(given: Any, wanted: Any) -> bool:
    if wanted is None or not isinstance(given, Tensor):
        return given is None and wanted is None
    return (given.shape == wanted.shape and given.dtype == wanted.dtype and given.layout is torch.strided
            and torch.allclose(given, wanted, rtol=TOLERANCE, atol=TOLERANCE))
