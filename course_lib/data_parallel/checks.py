"""What cannot work, said before it goes wrong: ranks that differ hang or mix up gradients: hard to find."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from course_lib.data_parallel.buckets import Bucket
from course_lib.groups.agreement import require_same
from course_lib.groups.membership import Group
from course_lib.groups.packing import require_cap
from course_lib.groups.tensors import describe


def name_parameters(module: nn.Module, bucket_cap_mb: float) -> dict[nn.Parameter, str]:
    """The name of each parameter. ValueError for arguments that DistributedDataParallel cannot work with."""
    if not isinstance(module, nn.Module):
        raise ValueError(f"module={module!r} is a {type(module).__name__}: expected an nn.Module")
    require_cap(bucket_cap_mb)
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ValueError(f"no parameter of this {type(module).__name__} requires a gradient, so there is nothing to "
                         "average: expected a module to train")
    return {parameter: name for name, parameter in module.named_parameters()}


def make_hook(hook: Any) -> Callable | None:
    """`hook`; one that is given as a class, like top_k_hook, is made with its defaults. ValueError for what is none."""
    if hook is not None and not callable(hook):
        raise ValueError(f"hook={hook!r} cannot be called: expected a function such as fp16_hook, or top_k_hook()")
    return hook() if isinstance(hook, type) else hook


def require_same_everywhere(module: nn.Module, buckets: Sequence[Bucket], group: Group) -> None:
    """ValueError, on all ranks, unless all have the same tensors in the same buckets."""
    bucket_of = {parameter: bucket.index for bucket in buckets for parameter in bucket.parameters}
    lines = [f"{name} {describe(tensor, tensor.device.type)}, "
             + (f"in bucket {bucket_of[tensor]}" if tensor in bucket_of else "not averaged")
             for name, tensor in [*module.named_parameters(), *module.named_buffers()]]
    require_same(lines, group, "modules", "the same parameters, buffers and bucket_cap_mb")


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
    given, expected = (describe(tensor) for tensor in (average, gradient))
    if given != expected:
        raise ValueError(f"the hook finished with {given}: expected {expected}")
