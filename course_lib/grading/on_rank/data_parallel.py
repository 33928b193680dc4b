"""Chapter 3 on a rank: gradients averaged in five ways, buckets as a plan, which rank learns from what.

    N  numbers in all gradients      k  micro-batches of a step; in 3.5 numbers that a rank sends
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from course_lib.grading.on_rank.models import batch_loss, gradients_of, model_of
from course_lib.grading.on_rank.plain import count_calls, plain
from course_lib.runtime import record_timeline, span

EPOCHS = [0, 1, 2]
STEPS = 2  # of 3.7: what the first one leaves behind shows in the second
KINDS = {"compute": "gradient", "communication": "begin", "waiting": "wait"}  # by lane
Inputs = dict[str, Any]
Order = list[list[Any]]  # of one step: ["gradient", 0], ["begin", bytes] and ["wait", 0], as they came


def average(function: Callable, inputs: Inputs) -> dict[str, Any]:
    """3.1 and 3.3: the gradients after `function` got the model, and its rows or the cap of a bucket."""
    model, (batch,) = model_of(inputs), inputs["batches"]
    batch_loss(model, batch).backward()
    _, calls = count_calls(function, model, inputs.get("cap", len(batch[0])))
    return {"gradients": gradients_of(model), "calls": calls}


def buckets(function: Callable, inputs: list[Any]) -> Any:
    """3.2: the lists of indices for sizes and a cap."""
    return lists(function(*inputs))


def lists(value: Any) -> Any:
    """int in lists of any depth, also from tensors (N,), tuples and ranges; words for anything else."""
    if isinstance(value, Tensor) and value.dtype == torch.int64 and value.dim() == 1:
        return value.tolist()
    if isinstance(value, list | tuple | range):
        return [lists(each) for each in value]
    return value if type(value) is int else plain(value)


def accumulate(function: Callable, inputs: Inputs) -> dict[str, Any]:
    """3.4: the gradients of torch's DDP after all micro-batches."""
    model = model_of(inputs)
    _, calls = count_calls(function, DistributedDataParallel(model), inputs["batches"])
    # Only all-reduces carry gradients; after its first one DDP also agrees on new buckets.
    return {"gradients": gradients_of(model), "calls": [call for call in calls if call[0] == "all_reduce"]}


def top_k(function: Callable, inputs: Inputs) -> dict[str, Any]:
    """3.5: the result for the gradient of each batch, and what it leaves of the residual, which is always the same."""
    model, steps, calls = model_of(inputs), {}, []
    residual = torch.zeros(sum(parameter.numel() for parameter in model.parameters()), dtype=torch.float64)  # (N,)
    for number, batch in enumerate(inputs["batches"]):
        returned, own = count_calls(function, flat_gradient(model, batch), residual, inputs["k"])
        calls += own
        steps |= name_step(number, plain(returned), residual.clone())
    return {"steps": steps, "calls": calls}


def name_step(number: int, returned: Any, residual: Tensor) -> dict[str, Any]:
    return {f"the result of step {number}": returned, f"the residual after step {number}": residual}


def flat_gradient(model: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    """All gradients of one batch, one after the other, (N,)."""
    model.zero_grad()
    batch_loss(model, batch).backward()
    return nn.utils.parameters_to_vector(parameter.grad for parameter in model.parameters())


def shard(function: Callable, inputs: Inputs) -> dict[str, Any]:
    """3.6: this rank's indices of some epochs, the same once more, and whether torch's own generator has moved."""
    N, n, r = (inputs[name] for name in ("num_samples", "world_size", "rank"))
    before = torch.get_rng_state()
    shards = [lists(function(N, epoch, r, n)) for epoch in EPOCHS]
    moved = not torch.equal(torch.get_rng_state(), before)
    torch.rand(1)  # whatever else happens in a training between two calls
    return {"shards": shards, "again": [lists(function(N, epoch, r, n)) for epoch in EPOCHS], "moved": moved}


def overlap(function: Callable, inputs: Inputs) -> dict[str, Any]:
    """3.7: the gradients after the last of some steps; of each step, the order of its events, and its calls."""
    def mark(_: Tensor) -> None:
        with span("gradient"):
            pass

    model, steps = model_of(inputs), []
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_hook(mark)  # the first hook: before anything else hears of this gradient
    for _ in range(STEPS):
        model.zero_grad(set_to_none=False)
        with record_timeline() as timeline:
            _, calls = count_calls(function, model, inputs["batches"], inputs["cap"])
        events = sorted(timeline.events + timeline.waits, key=lambda event: event.start_s)
        order = [[KINDS[event.lane], event.labels.get("bytes", 0)] for event in events]
        steps.append({"order": leave_out_calling(order), "calls": calls})
    return {"gradients": gradients_of(model), "steps": steps, "calls": [c for step in steps for c in step["calls"]]}


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
