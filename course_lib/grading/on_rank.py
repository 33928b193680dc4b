"""What runs of several chapters share on a rank, and all of the grader that a rank can see beside trusted/inside.

No trial, no right answer, no budget and no hint: those are the judges', on the other side of the wall, and nothing here
imports them. What is here may be read and called by the function that is graded. A chapter's own runs, (the reader's
function, the inputs of this rank) -> the answer, stand in its on_rank.py, of which a rank gets the text.

An answer is plain data: nothing with methods of the reader's own leaves a rank. Calls of torch.distributed are counted.
Then a small model in float64 whose gradients are looked at, and forward and backward of something that is cut.

    D  widths of the layers      B  rows of one rank's batch
"""

import math
import operator
import signal
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from decimal import Decimal
from itertools import islice
from numbers import Real
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.runtime import record_communication

Calls = list[list[Any]]  # [op, message bytes, bytes sent] of each call
Gradients = dict[str, Any]  # by the parameter's name; None where there is none
Leaves = dict[str, Tensor]
LONGEST = 100_000  # of what is read one by one, as a generator is: it may have no end
UNCOUNTED = ("sent a message whose bytes cannot be counted, as those of a sparse tensor: send the numbers and their "
             "places as two dense tensors")


class OutOfTime(BaseException):
    """The answer has computed for longer than any right one. No Exception: answers catch these."""


@contextmanager
def limit_computing(limit_s: float) -> Iterator[None]:
    """Raises OutOfTime in the block, of the main thread, after `limit_s` CPU seconds of this process, imports left out.

    A busy machine changes nothing: who has no core spends nothing. Windows does not count.
    """
    left_s, tick_s = limit_s, min(0.5, limit_s / 4)

    def tick(_: int, frame: FrameType | None) -> None:
        nonlocal left_s
        imports = any("importlib._bootstrap" in each.f_code.co_filename for each, _ in traceback.walk_stack(frame))
        left_s -= 0 if imports else tick_s
        if left_s <= 0:  # once more at each tick: the answer may catch it
            raise OutOfTime(f"did not finish within {limit_s:g} s of computing, imports aside. Does a loop never end?")

    if can_count := hasattr(signal, "setitimer"):
        signal.signal(signal.SIGPROF, tick)
        signal.siginterrupt(signal.SIGPROF, False)  # of the backend no call is cut short
        signal.setitimer(signal.ITIMER_PROF, tick_s, tick_s)
    try:
        yield
    finally:
        if can_count:
            signal.setitimer(signal.ITIMER_PROF, 0)


def plain(value: Any) -> Any:
    """`value` as data, on the rank: a copy of a tensor, None, or words that say what else it is."""
    if hasattr(value, "trigger_wait"):  # of a functional collective, which whoever uses it waits for
        value = value.trigger_wait()
    if type(value) is Tensor or type(value) is torch.nn.Parameter:
        dense = value.detach()
        return dense.to("cpu", copy=True).contiguous() if dense.layout is torch.strided else f"a {dense.layout} tensor"
    return None if value is None else kind(value)


def kind(value: Any) -> str:
    """What `value` is, in words: "a dict", "an int64"."""
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def data(value: Any) -> Any:
    """`value` as strings, whole numbers and floats in lists and dicts; words for what is none of them.

    Whatever is a whole number or a real one is taken, of numpy's types, torch's or Python's: np.int64(3) is 3,
    Fraction(1, 2) is 0.5. Tuples, arrays, tensors and whatever else gives one thing after the other are lists; a dict
    is in the order of its names, and a set in that of its parts.
    """
    if value is None or isinstance(value, str):
        return value if value is None else str(value)
    if isinstance(value, dict):
        return {str(name): data(value[name]) for name in sorted(value, key=str)}
    if isinstance(value, list | tuple | range):
        return [data(each) for each in value]
    if hasattr(value, "tolist") and (listed := value.tolist()) is not value:  # numpy's and torch's
        return data(listed)
    if isinstance(value, Iterable) and not isinstance(value, bytes):
        parts = [data(each) for each in islice(value, LONGEST + 1)]
        parts = sorted(parts, key=in_a_set) if isinstance(value, Set) else parts
        return parts if len(parts) <= LONGEST else f"{kind(value)} without an end"
    try:
        return operator.index(value)
    except TypeError:
        return float(value) if isinstance(value, Real | Decimal) else kind(value)


def in_a_set(part: Any) -> tuple[str, Any]:
    """By what the parts of a set are put in order, whatever they are."""
    return type(part).__name__, part if isinstance(part, int | float | str) else str(part)


def single(value: Any) -> Any:
    """The only element of a tensor or an array that has one, whatever its shape; anything else as it is."""
    return value.item() if hasattr(value, "item") and math.prod(getattr(value, "shape", (2,))) == 1 else value


def whole_tensor(value: Any, dtype: torch.dtype) -> Any:
    """`value` as `plain` has it; what is made of whole numbers, a tensor, an array or lists, as a tensor of `dtype`."""
    found = value if isinstance(value, Tensor) else data(value)
    try:
        found = torch.tensor(found) if isinstance(found, list) else found
    except (TypeError, ValueError, RuntimeError):  # of words, or of rows that differ in length
        return kind(value)
    if not isinstance(found, Tensor) or found.is_floating_point() or found.is_complex():
        return plain(value)
    fits = torch.equal(found.to(dtype).long(), found.long())
    return plain(found.to(dtype) if fits else found)


def number(function: Any, inputs: list[Any]) -> dict[str, Any]:
    """The run of an exercise that asks for a number."""
    value = single(function(*inputs))
    return {"value": kind(value) if isinstance(value, bool | str) else data(value)}


def numbers(function: Callable, inputs: list[list[Any]]) -> list[Any]:
    """The run of an exercise that asks for many numbers in one trial, words for what is none."""
    return [number(function, case)["value"] for case in inputs]


def values(function: Callable, inputs: list[Any]) -> Any:
    """The run of an exercise that asks for numbers and strings in lists and dicts."""
    return data(function(*inputs))


def tensor(function: Any, inputs: list[Any]) -> dict[str, Any]:
    """The run of an exercise that asks for a tensor, made of the first input or into it; and what was sent."""
    returned, calls = count_calls(function, *on_memory_of(inputs[:1]), *inputs[1:])
    sent = [num_bytes for op, _, num_bytes in calls if op == "send"]
    return {"returned": plain(returned), "tensor": plain(inputs[0]), "messages": len(sent), "sent": round(sum(sent))}


def on_memory_of(given: list[Any]) -> list[Any]:
    """Tensors on the memory of those given: who writes into them writes there, who gives them other memory does not."""
    return [each.detach() if isinstance(each, Tensor) else each for each in given]


def ring_bytes(num_bytes: int, n: int) -> int:
    """What a rank sends in an all-reduce of `num_bytes` over n ranks, by the ring convention."""
    return -(-2 * (n - 1) * num_bytes // n)


def count_calls(function: Callable, *arguments: Any) -> tuple[Any, Calls]:
    """What `function` returns, and its calls of torch.distributed. ValueError for one whose bytes are not known."""
    with record_communication() as log:
        returned = function(*arguments)
    events = [event for event in log.events if event.op != "barrier"]
    if unknown := next((event for event in events if event.message_bytes is None), None):
        raise ValueError(f"{unknown.op} {UNCOUNTED}")
    return returned, [[event.op, event.message_bytes, float(event.sent_bytes or 0)] for event in events]


def network(widths: Sequence[int], frozen: Sequence[str] = ()) -> nn.Sequential:
    """Linear layers with tanh between them, in float64; the parameters named in `frozen` do not learn."""
    layers: list[nn.Module] = []
    for before, after in zip(widths, widths[1:]):
        layers += [nn.Linear(before, after, dtype=torch.float64), nn.Tanh()]
    model = nn.Sequential(*layers[:-1])
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in frozen)
    return model


class Turned(nn.Module):
    """A network whose layers are used in another order than they are registered: the last one first."""

    def __init__(self, network: nn.Sequential) -> None:
        super().__init__()
        for name, layer in network.named_children():
            self.add_module(name, layer)

    def forward(self, x: Tensor) -> Tensor:
        """x through the layers, the last one first."""
        for layer in reversed(list(self.children())):
            x = layer(x)
        return x


def model_of(inputs: dict[str, Any]) -> nn.Module:
    """The model as it is before the step."""
    model = network(inputs["widths"], inputs["frozen"])
    model = Turned(model) if inputs.get("turned") else model
    model.load_state_dict(inputs["weights"])
    return model


def batch_loss(model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    """The mean over the batch, x (B, D_0) and y (B, D_last)."""
    x, y = batch
    return nn.functional.mse_loss(model(x), y)


def gradients_of(model: nn.Module) -> Gradients:
    """By name of a parameter, its gradient as a plain tensor."""
    return {name: plain(parameter.grad) for name, parameter in model.named_parameters()}


def leaves_of(inputs: dict[str, Any]) -> Leaves:
    """The given tensors as leaves of their own, so that gradients can be read and inputs stay as they are."""
    return {name: tensor.clone().requires_grad_() for name, tensor in inputs["given"].items()}


def leaf_gradients(leaves: Leaves) -> dict[str, Any]:
    """By name, the gradient of each leaf as a plain tensor."""
    return {name: plain(leaf.grad) for name, leaf in leaves.items()}


def forth_and_back(inputs: dict[str, Any], call: Callable[[Leaves], Any]) -> dict[str, Any]:
    """What `call` returns, its gradients after backward from dy, and its messages."""
    leaves = leaves_of(inputs)

    def passes() -> Any:
        y = call(leaves)
        returned = plain(y)
        if isinstance(y, Tensor) and y.requires_grad and y.shape == inputs["dy"].shape:
            y.backward(inputs["dy"].clone())
        return returned

    returned, calls = count_calls(passes)
    return {"y": returned, "gradients": leaf_gradients(leaves), "calls": calls}
