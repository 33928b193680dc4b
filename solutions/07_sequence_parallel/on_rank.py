"""Chapter 7 on a rank: gather and scatter, attention from parts, blocks around a ring, recomputation.

    x (B, T/t, D)  this rank's tokens      q, k, v, out (B, H, T, d)      dy  the gradient that comes back
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.grading.on_rank import count_calls, forth_and_back, leaf_gradients, leaves_of, plain, whole_tensor
from course_lib.runtime import record_memory
from course_lib.runtime.instruments import pending


def gather_and_scatter(function: Callable, inputs: dict[str, Any]) -> dict[str, Any]:
    """7.1: s = scatter(exp(w gather(x))), and backward from c s."""
    x, w = (inputs[name].clone().requires_grad_() for name in ("x", "w"))
    answer: dict[str, Any] = dict.fromkeys(("gathered", "scattered", "w", "x"))

    def there_and_back() -> None:
        pair = function()
        if not isinstance(pair, tuple | list) or len(pair) != 2 or not all(map(callable, pair)):
            answer["gathered"] = f"not two functions but {plain(pair)}"
            return
        whole = pair[0](x)
        answer["gathered"] = plain(whole)
        if not isinstance(whole, Tensor) or whole.shape != w.shape:
            return
        own = pair[1](torch.exp(w * whole))
        answer["scattered"] = plain(own)
        if isinstance(own, Tensor) and own.requires_grad and own.shape == x.shape:
            own.backward(inputs["c"].clone())
        answer["w"], answer["x"] = plain(w.grad), plain(x.grad)

    _, calls = count_calls(there_and_back)
    return {**answer, "calls": calls}


def merged_attention(function: Callable, inputs: dict[str, Any]) -> dict[str, Any]:
    """7.2: out and lse of all keys, from those of this rank's."""
    returned, calls = count_calls(function, inputs["out"].clone(), inputs["lse"].clone())
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        return {"out": "not two tensors", "lse": None, "calls": calls}
    return {"out": plain(returned[0]), "lse": plain(returned[1]), "calls": calls}


def pass_around(function: Callable, inputs: dict[str, Any]) -> dict[str, Any]:
    """7.4: the source and the fingerprint of each block, as they are used, and the bytes held at the peak.

    under_way: what was being sent and received when each block was used, of SEND and RECEIVE.
    """
    block, used, seen = inputs["block"].clone(), [], []

    with record_memory() as log, open_calls() as calls_now:
        def use(block: Tensor, source: int) -> None:
            seen.append(calls_now.directions())
            used.append([int(source), fingerprint(block)])

        before = log.current
        _, calls = count_calls(function, block, use)
    return {"used": used, "calls": calls, "held": log.peak - before, "under_way": seen}


SEND, RECEIVE = "send", "receive"


class OpenCalls:
    """The calls that have begun, and that nobody has waited for. A call that waits for itself is over with that."""

    def __init__(self) -> None:
        self.begun: dict[int, tuple[str, bool]] = {}  # by number: the operation, whether it has returned

    def directions(self) -> list[str]:
        """SEND, RECEIVE, or both: what is under way at this moment."""
        names = {name for name, _ in self.begun.values()} - {"barrier"}
        return [direction for direction, other in ((SEND, "recv"), (RECEIVE, "send")) if names - {other}]

    def begin_call(self, call: pending.GroupCall) -> None:
        """A call on a process group has begun."""
        self.begun[call.number] = call.op, False

    def begin_wait(self, call: pending.GroupCall) -> None:
        """Into the call itself, or into its wait()."""

    def end_wait(self, call: pending.GroupCall, since: Any) -> None:
        """The rank has come out of the call itself, or of its wait(), which closes it."""
        name, returned = self.begun.pop(call.number, (call.op, True))
        if not returned:  # that was the call itself
            self.begun[call.number] = name, True

    def end_call(self, call: pending.GroupCall) -> None:
        """Nothing: how quick the other ranks are is not judged, only what this rank waits for."""


@contextmanager
def open_calls() -> Iterator[OpenCalls]:
    """A context in which the rank's calls on process groups are watched."""
    pending.install()
    listener = OpenCalls()
    pending.listeners.append(listener)
    try:
        yield listener
    finally:
        pending.listeners.remove(listener)


def fingerprint(block: Tensor) -> list[float]:
    """What tells one block from another."""
    return [block.double().sum().item(), block.flatten()[0].item(), block.flatten()[-1].item()]


def recompute(function: Callable, inputs: dict[str, Any]) -> dict[str, Any]:
    """7.5: dropout(gelu(x W1)) W2 by `function`, once or twice: forward, other random numbers, backward, and one more.

    kept: bytes between forward and backward; runs: of what is inside.
    """
    leaves = leaves_of(inputs)
    callers: list[set[str]] = []  # the modules of those who called, in each run

    def feed_forward(x: Tensor) -> Tensor:
        callers.append(set(calling_modules()))
        return F.dropout(F.gelu(x @ leaves["W1"]), inputs["p"]) @ leaves["W2"]

    with torch.random.fork_rng(devices=[]), record_memory() as log:
        before = log.current
        torch.manual_seed(inputs["seed"])
        torch.rand(7)  # a state that no seed gives
        y = leaves["x"]
        for _ in range(inputs["layers"]):
            y = function(feed_forward, y)
        kept = log.current - before - (y.nbytes if isinstance(y, Tensor) else 0)
        torch.rand(5)  # others draw, too
        if isinstance(y, Tensor) and y.requires_grad and y.shape == inputs["dy"].shape:
            y.backward(inputs["dy"].clone())
        after = torch.rand(()).item()
    return {"y": plain(y), **leaf_gradients(leaves), "after": after, "kept": kept, "runs": len(callers),
            "by_torch": any("torch.utils.checkpoint" in modules for modules in callers)}


def calling_modules() -> Iterator[str]:
    """The module of each function that has led here, the nearest first."""
    frame = sys._getframe(1)  # traceback.walk_stack(None) leaves out some of the nearest, in some versions of Python
    while frame:
        yield frame.f_globals.get("__name__", "")
        frame = frame.f_back


def document_positions(function: Callable, inputs: list[Any]) -> dict[str, Any]:
    """7.3: the positions, of whatever whole numbers they are made."""
    return {"returned": whole_tensor(function(*inputs), torch.int64)}


def whole_ring(function: Callable, inputs: dict[str, Any]) -> dict[str, Any]:
    """7.7: attention forth and back, and the bytes held at the peak, those of the arguments among them."""
    with record_memory() as log:
        before = log.current
        answer = forth_and_back(inputs, lambda leaves: function(*leaves.values(), inputs["positions"]))
    return {**answer, "held": log.peak - before}
