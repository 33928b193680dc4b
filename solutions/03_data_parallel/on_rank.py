"""Chapter 3 on a rank: gradients averaged in five ways, buckets as a plan, which rank learns from what.

    N  numbers in all gradients      k  micro-batches of a step; in 3.5 numbers that a rank sends
"""

import builtins
import random
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from course_lib.grading.on_rank import batch_loss, count_calls, data, gradients_of, model_of, plain
from course_lib.runtime import record_timeline, span

EPOCHS = [0, 1, 2]
STEPS = 2  # of 3.7: what the first one leaves behind shows in the second
KINDS = {"compute": "gradient", "communication": "begin", "waiting": "wait"}  # by lane
Inputs = dict[str, Any]
Order = list[list[Any]]  # of one step: ["gradient", 0], ["begin", bytes] and ["wait", 0], as they came


def average(function: Callable, inputs: Inputs) -> dict[str, Any]:
    """3.1 and 3.3: the gradients after `function` got the model, and its rows or the cap of a bucket."""
    model, (batch,) = model_of(inputs), inputs["batches"]
    if "given" in inputs:
        for name, parameter in model.named_parameters():
            parameter.grad = inputs["given"].get(name)
    else:
        batch_loss(model, batch).backward()
    _, calls = count_calls(function, model, inputs.get("cap", len(batch[0])))
    return {"gradients": gradients_of(model), "calls": calls}


def buckets(function: Callable, inputs: list[Any]) -> Any:
    """3.2: the lists of indices for sizes and a cap."""
    return data(function(*inputs))


class RowsHeld:
    """How many rows of activations wait for their backward, and the most that ever did."""

    def __init__(self, model: nn.Module) -> None:
        self.now = self.most = 0
        model.register_forward_pre_hook(self.forward)
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_hook(self.backward)

    def forward(self, _: nn.Module, given: tuple[Tensor, ...]) -> None:
        """A forward hook: counts the rows whose graph is kept from now on."""
        if torch.is_grad_enabled():
            self.now += len(given[0])
            self.most = max(self.most, self.now)

    def backward(self, _: Tensor) -> None:
        """A backward hook: the graph is gone, and its rows with it."""
        self.now = 0


def accumulate(function: Callable, inputs: Inputs) -> dict[str, Any]:
    """3.4: the gradients of torch's DDP after all micro-batches, and the rows whose activations it held at once."""
    model = model_of(inputs)
    held = RowsHeld(model)
    _, calls = count_calls(function, DistributedDataParallel(model), inputs["batches"])
    # Only all-reduces carry gradients; after its first one DDP also agrees on new buckets.
    return {"gradients": gradients_of(model), "rows": held.most,
            "calls": [call for call in calls if call[0] == "all_reduce"]}


def top_k(function: Callable, inputs: Inputs) -> dict[str, Any]:
    """3.5: the result for the gradient of each batch, and what it leaves of the residual, which is always the same."""
    gradients, steps, calls = flat_gradients(inputs), {}, []
    residual = torch.zeros_like(gradients[0])  # (N,)
    for number, gradient in enumerate(gradients):
        returned, own = count_calls(function, gradient.clone(), residual, inputs["k"])
        calls += own
        steps |= name_step(number, plain(returned), residual.clone())
    return {"steps": steps, "calls": calls}


def name_step(number: int, returned: Any, residual: Tensor) -> dict[str, Any]:
    """The two things to compare of one step, under names that say which step it was."""
    return {f"the result of step {number}": returned, f"the residual after step {number}": residual}


def flat_gradients(inputs: Inputs) -> list[Tensor]:
    """For each batch all gradients, one after the other, (N,)."""
    return inputs["given"] if "given" in inputs else [
        flat_gradient(model_of(inputs), batch) for batch in inputs["batches"]]


def flat_gradient(model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    """The gradient of the batch's loss by all parameters, one vector in their order."""
    batch_loss(model, batch).backward()
    return nn.utils.parameters_to_vector(parameter.grad for parameter in model.parameters())


def shard(function: Callable, inputs: Inputs) -> dict[str, Any]:
    """3.6: this rank's indices of some epochs, the same once more, and the global generators that have moved.

    On a cluster hash() of a text differs from process to process. These ranks are copies of one process, where it
    would be the same: so hash is replaced by one that differs from rank to rank.
    """
    N, n, r = (inputs[name] for name in ("num_samples", "world_size", "rank"))
    common, builtins.hash = hash, lambda value: common(value) ^ (r if "'" in repr(value) else 0)
    try:
        before = generator_states()
        shards = [data(function(N, epoch, r, n)) for epoch in EPOCHS]
        moved = [name for name, state in generator_states().items() if before.get(name, state) != state]
        torch.rand(1)  # whatever else happens in a training between two calls
        again = [data(function(N, epoch, r, n)) for epoch in EPOCHS]
    finally:
        builtins.hash = common
    return {"shards": shards, "again": again, "moved": moved}


def generator_states() -> dict[str, Any]:
    """The state of each global random generator that there is."""
    states = {"torch": torch.get_rng_state().tolist(), "Python": random.getstate()}
    if "numpy" in sys.modules:
        kind, keys, *rest = sys.modules["numpy"].random.get_state()
        states["numpy"] = (kind, keys.tolist(), rest)
    return states


def overlap(function: Callable, inputs: Inputs) -> dict[str, Any]:
    """3.7: the gradients after the last of some steps; of each step, its events in order, and its calls; the rows."""
    def mark(_: Tensor) -> None:
        with span("gradient"):
            pass

    model, steps = model_of(inputs), []
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_hook(mark)  # the first hook: before anything else hears of this gradient
            parameter.grad = torch.zeros_like(parameter)
    held = RowsHeld(model)
    for _ in range(STEPS):
        model.zero_grad(set_to_none=False)
        with record_timeline() as timeline:
            _, calls = count_calls(function, model, inputs["batches"], inputs["cap"])
        events = sorted(timeline.events + timeline.waits, key=lambda event: event.start_s)
        order = [[KINDS[event.lane], event.labels.get("bytes", 0)] for event in events]
        steps.append({"order": leave_out_calling(order), "calls": calls})
    return {"gradients": gradients_of(model), "steps": steps, "rows": held.most,
            "calls": [call for step in steps for call in step["calls"]]}


def leave_out_calling(order: Order) -> Order:
    """`order` without the time that it takes to make a call: the first wait after each begin."""
    kept, calling = [], 0
    for what, detail in order:
        calling += what == "begin"
        if what == "wait" and calling:
            calling -= 1
        else:
            kept.append([what, detail])
    return kept
