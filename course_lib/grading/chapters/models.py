"""What the trials of this chapter share: a small model with real gradients, and a count of what a function calls.

Everything is float64, so that a sum in another order differs by less than TOLERANCE, and a mistake by far more.

    n  ranks, r this one      D  widths of the layers      B  rows of one rank's batch      M  bytes of all gradients
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.grading.exercise import Traffic, Trial
from course_lib.grading.tensors import amount, plain

TOLERANCE = 1e-9
SMALL, LARGE = [3, 4, 4, 2], [64, 128, 128, 8]  # widths
EQUAL = [4, 4, 4, 4]  # all layers have the same size
Gradients = dict[str, Any]  # by the parameter's name; None where there is none
HEADERS = 32 * 1024  # bytes: gloo's own, of all the calls of a trial together
NO_GRADIENT = "a parameter without a gradient, here the frozen one, has .grad None: leave it out"


def network(widths: Sequence[int], frozen: Sequence[str] = ()) -> nn.Sequential:
    """Linear layers with tanh between them, in float64; the parameters named in `frozen` do not learn."""
    layers: list[nn.Module] = []
    for before, after in zip(widths, widths[1:]):
        layers += [nn.Linear(before, after, dtype=torch.float64), nn.Tanh()]
    model = nn.Sequential(*layers[:-1])
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in frozen)
    return model


def trial_of(generator: torch.Generator, n: int, widths: Sequence[int], frozen: Sequence[str] = (),
             num_batches: int = 1, **more: Any) -> Trial:
    """The same weights on all ranks, and `num_batches` batches of 3 rows for each rank."""
    shapes = {name: value.shape for name, value in network(widths).state_dict().items()}
    weights = {name: torch.randn(shape, generator=generator, dtype=torch.float64) / shape[-1] ** 0.5
               for name, shape in shapes.items()}
    ranks = []
    for _ in range(n):
        batches = [[torch.randn(3, width, generator=generator, dtype=torch.float64)
                    for width in (widths[0], widths[-1])] for _ in range(num_batches)]
        ranks.append({"widths": list(widths), "frozen": list(frozen), "weights": weights, "batches": batches, **more})
    return Trial(ranks, f"{n} rank{'s' * (n > 1)}, {amount(gradient_bytes(ranks[0]))} of gradients")


def model_of(inputs: dict[str, Any]) -> nn.Sequential:
    """The model as it is before the step."""
    model = network(inputs["widths"], inputs["frozen"])
    model.load_state_dict(inputs["weights"])
    return model


def batch_loss(model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    """The mean over the batch, x (B, D_0) and y (B, D_last)."""
    x, y = batch
    return nn.functional.mse_loss(model(x), y)


def gradients_of(model: nn.Module) -> Gradients:
    return {name: plain(parameter.grad) for name, parameter in model.named_parameters()}


def own_gradients(inputs: dict[str, Any], batch: int = 0) -> Gradients:
    """Those of one rank's batch, computed here, without any function of the reader's."""
    model = model_of(inputs)
    batch_loss(model, inputs["batches"][batch]).backward()
    return gradients_of(model)


def combined(each: Sequence[Gradients], scale: float = 1.0) -> Gradients:
    """The sum of several gradients, times `scale`."""
    return {name: None if first is None else scale * sum(gradients[name] for gradients in each)
            for name, first in each[0].items()}


def gradient_bytes(inputs: dict[str, Any]) -> int:
    """M: bytes of the gradients of one rank, the frozen parameters left out."""
    return sum(gradient_sizes(inputs))


def gradient_sizes(inputs: dict[str, Any]) -> list[int]:
    """Bytes of each gradient, in the order of the parameters."""
    return [value.nbytes for name, value in inputs["weights"].items() if name not in inputs["frozen"]]


def close(given: Any, expected: Any) -> bool:
    """Whether both are None, or tensors of the same form that differ by rounding at most."""
    if expected is None or not isinstance(given, Tensor):
        return given is None and expected is None
    return (given.shape == expected.shape and given.dtype == expected.dtype
            and torch.allclose(given, expected, rtol=TOLERANCE, atol=TOLERANCE))


def alike(given: Sequence[Gradients], expected: Sequence[Gradients]) -> bool:
    """Whether all ranks have these gradients."""
    return all(a.keys() == b.keys() and all(close(a[name], b[name]) for name in b) for a, b in zip(given, expected))


def counted(function: Callable, *arguments: Any) -> tuple[Any, list[list[Any]]]:
    """What `function` returns, and its calls of torch.distributed on this rank: [op, message bytes, bytes sent]."""
    from course_lib.runtime import record_communication  # starts nothing; but a judge does without it

    with record_communication() as log:
        try:
            returned = function(*arguments)
        except (AttributeError, TypeError) as error:
            if "NoneType" in str(error):
                error.add_note(NO_GRADIENT)
            raise
    return returned, [[event.op, event.message_bytes or 0, float(event.sent_bytes or 0)] for event in log.events
                      if event.op != "barrier"]


def sent_by(rank: int, answers: Sequence[dict[str, Any]], traffic: Traffic, beforehand: int = 0) -> int:
    """Bytes that `rank` sent, collectives by the ring convention.

    The rank counts its own calls. Where the operating system counts too, a rank that keeps silent about its calls gains
    nothing: all above HEADERS and `beforehand`, what the trial itself sent, is taken for what the function sent.
    """
    own = round(sum(sent for _, _, sent in answers[rank]["calls"]))
    if traffic.exact:
        return own
    outside = traffic.sent_by(rank) - beforehand
    return outside if outside > own + HEADERS + traffic.slack(own) else own
