"""What cannot work, said before it goes wrong."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.groups.agreement import require_same
from course_lib.groups.membership import Member
from course_lib.groups.packing import require_cap
from course_lib.groups.tensors import describe
from course_lib.zero.flat import FlatBucket


def require_stage(stage: Any, bucket_cap_mb: Any) -> None:
    if isinstance(stage, bool) or stage not in (1, 2):
        more = ", and FullyShardedDataParallel for stage 3" if stage == 3 else ""
        raise ValueError(f"stage={stage!r}: expected 1 (optimiser state) or 2 (and gradients){more}")
    require_cap(bucket_cap_mb)


def require_element_wise(optimizer_class: Any, defaults: dict[str, Any]) -> None:
    """ValueError unless a matrix steps to the same numbers when it is cut: tried out, on eight numbers, for two steps.

    LBFGS looks at all numbers at once, Adafactor at rows and columns, Muon at matrices: they cannot work on pieces.
    """
    if not (isinstance(optimizer_class, type) and issubclass(optimizer_class, torch.optim.Optimizer)):
        raise ValueError(f"optimizer_class={optimizer_class!r}: expected a class such as torch.optim.AdamW, of which a "
                         "ZeroOptimizer makes its own")
    if issubclass(optimizer_class, torch.optim.LBFGS):
        raise_mixes(optimizer_class)
    values = torch.arange(1.0, 9.0)
    whole = [nn.Parameter(values.view(2, 4).clone())]
    steps(optimizer_class(whole, **defaults), whole)  # with options that are wrong this raises, and may
    pieces = [nn.Parameter(part.clone()) for part in values.split([3, 5])]
    try:
        steps(optimizer_class(pieces, **defaults), pieces)
    except (ValueError, RuntimeError, IndexError):
        raise_mixes(optimizer_class)
    if not torch.allclose(whole[0].detach().flatten(), torch.cat([piece.detach() for piece in pieces]), rtol=1e-4):
        raise_mixes(optimizer_class)


def steps(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter]) -> None:
    for number in (1, 2):
        for parameter in parameters:
            parameter.grad = parameter.detach().pow(number) / 10
        optimizer.step()


def raise_mixes(optimizer_class: type) -> None:
    raise ValueError(f"{optimizer_class.__name__} does not step element by element, so it cannot step on pieces of "
                     "parameters: expected one that does, such as AdamW, Adam, SGD or RMSprop")


def require_trainable(everything: Sequence[nn.Parameter], trained: Sequence[nn.Parameter]) -> None:
    if not trained:
        raise ValueError(f"none of the {len(everything)} parameters requires a gradient: expected some to train")
    for parameter in trained:
        if not parameter.is_floating_point():
            raise ValueError(f"a parameter is {describe(parameter)}: expected real numbers")
        if not parameter.is_leaf:
            raise ValueError("a parameter is the result of a computation: expected leaves, module.parameters() say")


def require_same_groups(param_groups: list[dict[str, Any]], bucket_cap_mb: float, me: Member) -> None:
    """ValueError, on all ranks, unless all were given the same parameters in the same groups."""
    grouped = [(parameter, index) for index, options in enumerate(param_groups) for parameter in options["params"]]
    lines = [f"number {number} {describe(parameter, parameter.device.type)}, requires_grad={parameter.requires_grad}, "
             f"group {index}" for number, (parameter, index) in enumerate(grouped)]
    require_same([*lines, f"bucket_cap_mb={bucket_cap_mb}"], me, "parameters", "the same ones, options included,")


def require_no_average(buckets: Sequence[FlatBucket]) -> None:
    """ValueError where gradients of the step before are still there; only the reader of stage 1 has them in .grad."""
    for bucket in buckets:
        if not bucket.parts or any(parameter.grad is part for parameter, part in bucket.parts.items()):
            raise ValueError("backward after the gradients were averaged for a step, which would be added to again: "
                             "expected zero_grad() of the ZeroOptimizer before the next step's backward")


def require_no_gradient_by_hand(buckets: Sequence[FlatBucket]) -> None:
    if any(parameter.grad is not None for bucket in buckets for parameter in bucket.parameters):
        raise ValueError("a .grad was set by hand: in stage 2 expected gradients that backward brings, which are taken "
                         "as they come; stage 1 takes what is in .grad")


def require_still_frozen(parameters: Iterable[Tensor]) -> None:
    for parameter in parameters:
        if parameter.requires_grad:
            raise ValueError(f"a parameter of shape {list(parameter.shape)} was frozen when the ZeroOptimizer was made "
                             "and requires a gradient now, which nobody would step on: unfreeze first")


def require_in_step(broken_off: bool) -> None:
    """RuntimeError where a backward pass raised in the middle and messages are under way."""
    if broken_off:
        raise RuntimeError("the last backward pass raised before its end, so this rank is out of step with the others: "
                           "expected a new ZeroOptimizer on all ranks")


def require_shardable(module: Any, should_shard: Any, compute_dtype: Any, prefetch: Any, sharder: type) -> None:
    """ValueError for arguments that FullyShardedDataParallel cannot work with."""
    if not isinstance(module, nn.Module):
        raise ValueError(f"module={module!r} is a {type(module).__name__}: expected an nn.Module")
    inside = next((name for name, submodule in module.named_modules() if isinstance(submodule, sharder)), None)
    if inside is not None:
        raise ValueError(f"{inside or 'the module'} is a {sharder.__name__} already: expected a plain module, and "
                         "should_shard to say what inside it is gathered together")
    if not any(parameter.numel() for parameter in module.parameters()):
        raise ValueError(f"this {type(module).__name__} has no parameters, so there is nothing to shard")
    if should_shard is not None and not callable(should_shard):
        raise ValueError(f"should_shard={should_shard!r}: expected a function of (name, module) that says whether the "
                         "module is a unit, or None")
    if compute_dtype is not None and not (isinstance(compute_dtype, torch.dtype) and compute_dtype.is_floating_point):
        raise ValueError(f"compute_dtype={compute_dtype!r}: expected a dtype such as torch.bfloat16, or None")
    if isinstance(prefetch, bool) or not isinstance(prefetch, int) or prefetch < 0:
        raise ValueError(f"prefetch={prefetch!r}: expected how many units to gather ahead, a whole number from 0")
