"""Stage 2: each bucket of gradients is averaged and freed as soon as backward has filled it; one block of it is kept.

Source: Rajbhandari et al. 2020, "ZeRO", section 5.2 (P_os+g).
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from course_lib.groups.exchange import start_reduce_scatter
from course_lib.groups.membership import Member
from course_lib.runtime.torch_private import when_backward_ends
from course_lib.zero import checks
from course_lib.zero.flat import FlatBucket


class Stage2:
    """The gradients of all `buckets`. They are sent in every backward pass, while it runs.

    `closed`: a step was taken with them, and no other may be added to them.
    """

    def __init__(self, buckets: Sequence[FlatBucket], me: Member) -> None:
        self.buckets, self.me, self.closed = buckets, me, False
        self.in_backward, self.num_started = False, 0  # buckets that this backward pass has sent
        self.under_way: tuple[FlatBucket, Callable[[Tensor], None]] | None = None

    def take(self, parameter: nn.Parameter, bucket: FlatBucket) -> None:
        """A gradient is complete: it moves into its bucket, and full buckets leave, in one order on all ranks."""
        if not self.in_backward:
            self.in_backward = True
            when_backward_ends(self.finish)
        checks.require_first(parameter, bucket, self.num_started)
        bucket.gradients.take(parameter)
        parameter.grad = None
        while self.num_started < len(self.buckets) and not self.buckets[self.num_started].gradients.missing:
            self._start_next()

    def _start_next(self) -> None:
        bucket = self.buckets[self.num_started]
        self.num_started += 1
        bucket.gradients.mark_missing()
        finish = start_reduce_scatter(bucket.gradients.gradient, self.me, bucket.index)
        self._finish_last()  # when the next one has begun: two are under way at most
        self.under_way = bucket, finish

    def _finish_last(self) -> None:
        if self.under_way is not None:
            bucket, finish = self.under_way
            average = bucket.new_block()  # (S,)
            finish(average)
            bucket.gradients.close()  # the other blocks are others'
            bucket.add_gradient(average)
            self.under_way = None

    @torch.no_grad()
    def finish(self) -> None:
        """Backward is over: the buckets leave that wait for a gradient that did not come."""
        while self.num_started < len(self.buckets):
            self._start_next()
        self._finish_last()
        self.in_backward, self.num_started = False, 0

    def average(self) -> None:
        """Backward has done it. A rank whose loss reached no parameter had none, and takes part here."""
        checks.require_in_step(self.in_backward)
        checks.require_taken(self.buckets)
        if any(bucket.block_gradient is None for bucket in self.buckets):
            self.finish()

    def forget(self) -> None:
        """The memory of all gradients is free."""
        checks.require_in_step(self.num_started > 0)
        for bucket in self.buckets:
            bucket.forget_gradients()
        self.closed = self.in_backward = False
