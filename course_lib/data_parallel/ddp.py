"""DistributedDataParallel: gradients are averaged in buckets, while backward still runs.

    n ranks      g_r the gradient of the mean loss over rank r's rows      g = (g_1 + ... + g_n) / n

With as many rows on each rank, g is the gradient of the mean loss over all rows, so that all ranks take the step one
process would take on the whole batch. Each rank sends 2 (n-1)/n of the gradients' bytes a step: never twice as many.

Ranks that differ hang or mix up gradients, which is hard to find, so what cannot work is said before it goes wrong.

Source: Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel Training".
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.data_parallel.averaging import Bucket, ask_for_unused_parameters, make_buckets
from course_lib.data_parallel.hooks import Hook, all_reduce_hook
from course_lib.groups.exchange import require_same
from course_lib.groups.gradients import (
    broadcast,
    missing_everywhere,
    require_cap,
    require_dense,
    require_first,
    require_reduce_dtype,
    when_complete,
)
from course_lib.groups.membership import Group, describe, member, require_kind
from course_lib.runtime.tensors import tensors_in
from course_lib.runtime.torch_private import when_backward_ends


class DistributedDataParallel(nn.Module):
    """`module` on every rank of `group` (None: the world), all trained as one.

    Rank 0's parameters and buffers are broadcast now, its buffers again before each forward pass in training mode.
    When a backward pass returns, every .grad is the average over the ranks. A rank without a gradient counts as zero;
    a parameter that no rank used keeps the .grad it had. `hook` replaces the all-reduce of a bucket.

    reduce_dtype: what gradients are divided, sent and added in, each sum rounded to it; None: their own, in which sums
    of bf16 lose digits. torch.float32 rounds once, when the average becomes .grad, and sends four bytes a number. As
    torch's MixedPrecisionPolicy.reduce_dtype and Megatron's grad_reduce_in_fp32.

    Every backward pass that reaches `module` communicates, so all ranks run as many. Different from torch's own:
    no_sync counts where backward runs, unused parameters need no flag, a forward pass in eval mode sends nothing.
    """

    def __init__(self, module: nn.Module, group: dist.ProcessGroup | None = None, bucket_cap_mb: float = 25,
                 hook: Hook | None = None, reduce_dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.names = name_parameters(module, bucket_cap_mb)
        require_reduce_dtype(reduce_dtype)
        self.hook = make_hook(hook) or all_reduce_hook
        self.module, self.member, self.synchronizing, self.in_backward = module, member(group), True, False
        self.buckets = make_buckets(module.parameters(), bucket_cap_mb * 2**20, self.member.group, reduce_dtype)
        self.bucket_of = {parameter: bucket for bucket in self.buckets for parameter in bucket.parameters}
        self.underway: list[Callable[[], Tensor]] = []  # what the hook returned for each bucket sent so far
        require_same_everywhere(module, self.buckets, reduce_dtype, self.member)
        broadcast([*module.parameters(), *module.buffers()], self.member)
        when_complete(self.bucket_of, self._gradient_is_there)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The module's own forward. In training, buffers are made rank 0's first, and backward is told to average."""
        require_still_trainable(self.names, self.bucket_of)
        self._forget_failed_backward()
        if self.module.training and self.synchronizing:
            # Buffers, such as running means, are of each rank's own rows: without this, ranks would drift apart in
            # them.
            broadcast(self.module.buffers(), self.member)
        outputs = self.module(*inputs, **named)
        for output in tensors_in(outputs):
            if output.grad_fn is not None:
                # The earliest moment of backward that anybody can hook: the gradient reaches the outputs first.
                output.register_hook(self._backward_begins)
        return outputs

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes in here only accumulate on this rank; the next one outside averages all there is."""
        before, self.synchronizing = self.synchronizing, False
        try:
            yield
        finally:
            self.synchronizing = before

    def _backward_begins(self, _: Tensor | None = None) -> None:
        # From the outputs, so that a rank whose loss reaches no parameter takes part too.
        if self.synchronizing and not self.in_backward:
            self.in_backward = True
            when_backward_ends(self._backward_ends)

    def _gradient_is_there(self, parameter: nn.Parameter) -> None:
        """Autograd calls this when a parameter's .grad is complete, and goes on to the parameters before it."""
        if self.synchronizing:
            self._backward_begins()
            bucket, name = self.bucket_of[parameter], self.names[parameter]
            require_dense(parameter, name)
            require_first(parameter in bucket.missing, name)
            bucket.take(parameter)
            if bucket.ready:
                self._send_what_is_ready()

    def _send_what_is_ready(self) -> None:
        # Never the second bucket before the first: collectives must be called in one order on all ranks, and gradients
        # need not arrive in one order.
        while len(self.underway) < len(self.buckets) and self.buckets[len(self.underway)].ready:
            self.underway.append(self.hook(self.buckets[len(self.underway)]))

    @torch.no_grad()
    def _backward_ends(self) -> None:
        """Send the buckets that wait for a gradient that did not come, then wait for the averages."""
        if not self.in_backward:
            return
        # Every rank sends every bucket, also where it has no gradient to bring: the others wait in its all-reduce.
        without = {parameter for bucket in self.buckets[len(self.underway):] for parameter in bucket.complete()}
        self._send_what_is_ready()
        for bucket, finish in zip(self.buckets, self.underway):
            average = finish()
            require_average(average, bucket.gradient)
            if average is not bucket.gradient:
                bucket.gradient.copy_(average)
        unused = self._find_unused_parameters(without)
        for bucket in self.buckets:
            bucket.hand_out(without, unused)
        self._reset()

    def _find_unused_parameters(self, without: set[nn.Parameter]) -> set[nn.Parameter]:
        """Of the parameters this rank is `without`: nobody's, so that an optimiser leaves them alone."""
        if self.hook is all_reduce_hook:
            return missing_everywhere(without, self.buckets)
        return ask_for_unused_parameters(without, self.buckets, self.member)

    def _reset(self) -> None:
        for bucket in self.buckets:
            bucket.free()
        self.underway.clear()
        self.in_backward = False

    def _forget_failed_backward(self) -> None:
        if self.underway:
            raise RuntimeError("the last backward pass raised when some of its gradients were under way, so this rank "
                               "is out of step with the others: expected a new DistributedDataParallel on all ranks")
        if self.in_backward:
            self._reset()


def name_parameters(module: nn.Module, bucket_cap_mb: float) -> dict[nn.Parameter, str]:
    """The name of each parameter. ValueError for arguments that DistributedDataParallel cannot work with."""
    require_kind(module)
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


def require_same_everywhere(module: nn.Module, buckets: Sequence[Bucket], reduce_dtype: torch.dtype | None,
                            group: Group) -> None:
    """ValueError, on all ranks, unless all have the same tensors in the same buckets."""
    bucket_of = {parameter: bucket.index for bucket in buckets for parameter in bucket.parameters}
    lines = [f"{name} {describe(tensor, tensor.device.type)}, "
             + (f"in bucket {bucket_of[tensor]}" if tensor in bucket_of else "not averaged")
             for name, tensor in [*module.named_parameters(), *module.named_buffers()]]
    lines.insert(0, f"reduce_dtype={reduce_dtype}")
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
