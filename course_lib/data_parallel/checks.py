"""What cannot work, said before it goes wrong: ranks that differ hang or mix up gradients: hard to find."""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.data_parallel.buckets import Bucket
from course_lib.groups.membership import Member
from course_lib.groups.tensors import described


def parameter_names(module: nn.Module, bucket_cap_mb: float) -> dict[nn.Parameter, str]:
    """The name of each parameter. ValueError for arguments that DistributedDataParallel cannot work with."""
    if not isinstance(module, nn.Module):
        raise ValueError(f"module={module!r} is a {type(module).__name__}: expected an nn.Module")
    if isinstance(bucket_cap_mb, bool) or not (isinstance(bucket_cap_mb, (int, float)) and bucket_cap_mb > 0):
        raise ValueError(f"bucket_cap_mb={bucket_cap_mb!r}: expected a number of MiB above 0")
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ValueError(f"no parameter of this {type(module).__name__} requires a gradient, so there is nothing to "
                         "average: expected a module to train")
    return {parameter: name for name, parameter in module.named_parameters()}


def checked_hook(hook: Any) -> Callable | None:
    """`hook`; one that is given as a class, like top_k_hook, is made with its defaults. ValueError for what is none."""
    if hook is not None and not callable(hook):
        raise ValueError(f"hook={hook!r} cannot be called: expected a function such as fp16_hook, or top_k_hook()")
    return hook() if isinstance(hook, type) else hook


def require_same_everywhere(module: nn.Module, buckets: Sequence[Bucket], me: Member) -> None:
    """ValueError, on all ranks, unless all have the same tensors in the same buckets. Eight bytes each say whether."""
    if me.n == 1:
        return
    bucket_of = {parameter: bucket.index for bucket in buckets for parameter in bucket.parameters}
    lines = [f"{name} {described(tensor.detach(), tensor.device.type)}, "
             + (f"in bucket {bucket_of[tensor]}" if tensor in bucket_of else "not averaged")
             for name, tensor in [*module.named_parameters(), *module.named_buffers()]]
    digest = hashlib.sha256("\n".join(lines).encode()).digest()[:8]
    mine = torch.tensor([int.from_bytes(digest, "big", signed=True)], device=next(module.parameters()).device)
    everyones = [torch.empty_like(mine) for _ in range(me.n)]
    dist.all_gather(everyones, mine, group=me.group)
    if all(torch.equal(each, everyones[0]) for each in everyones):
        return
    all_lines: list[Any] = [None] * me.n
    dist.all_gather_object(all_lines, lines, group=me.group)
    place = next(place for place in range(me.n) if all_lines[place] != all_lines[0])
    raise ValueError(f"the ranks hold different modules: {first_difference(all_lines[0], all_lines[place], place)}. "
                     "Expected the same parameters, buffers and bucket_cap_mb on every rank")


def first_difference(first: list[str], other: list[str], place: int) -> str:
    length = max(len(first), len(other))
    padded = [lines + ["nothing more"] * (length - len(lines)) for lines in (first, other)]
    a, b = next((a, b) for a, b in zip(*padded) if a != b)
    return f"place 0 has {a}, place {place} has {b}"


def require_dense(parameter: nn.Parameter, name: str, expected: bool) -> None:
    """Refuse a gradient that cannot be averaged, or that was not `expected` (any more) in this backward pass."""
    if parameter.grad.layout is not torch.strided:
        raise ValueError(f"{name} has a sparse gradient: expected a dense one, nn.Embedding(..., sparse=False)")
    if parameter.grad.requires_grad:
        raise ValueError("backward(create_graph=True) through DistributedDataParallel: the averages would not belong "
                         "to the graph. Expected backward(), or torch.autograd.grad on .module")
    if not expected:
        raise ValueError(f"{name} got a second gradient in one backward pass, when the first was under way. Two "
                         "reentrant checkpoints that share a parameter do that: use checkpoint(use_reentrant=False)")


def require_still_trainable(names: dict[nn.Parameter, str], averaged: dict[nn.Parameter, Bucket]) -> None:
    """ValueError for a parameter that was frozen at the start, has no bucket, and is trained now."""
    for parameter, name in names.items():
        if parameter.requires_grad and parameter not in averaged and parameter.numel():
            raise ValueError(f"{name} was frozen when DistributedDataParallel was made and requires a gradient now, "
                             "which nobody would average: unfreeze first, or wrap the module again")


def require_average(average: Any, gradient: Tensor) -> None:
    """ValueError unless a hook came back with as many numbers of the same kind as went in."""
    if not isinstance(average, Tensor):
        raise ValueError(f"the hook finished with {average!r}: expected the averaged gradient, a tensor")
    given, expected = (described(tensor, tensor.device) for tensor in (average, gradient))
    if given != expected:
        raise ValueError(f"the hook finished with {given}: expected {expected}")
