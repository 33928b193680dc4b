"""Stage 1: gradients stay whole until the step, for which every rank averages its own block of them.

Source: Rajbhandari et al. 2020, "ZeRO", section 5.1 (P_os).
"""

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from course_lib.groups.exchange import start_reduce_scatter
from course_lib.groups.membership import Member
from course_lib.zero.flat import FlatBucket


class Stage1:
    """The gradients of all `buckets`. They are sent once a step, however many backward passes it took.

    `closed`: they are averaged, and no other may be added to them.
    """

    def __init__(self, buckets: Sequence[FlatBucket], me: Member) -> None:
        self.buckets, self.me, self.closed = buckets, me, False

    def take(self, parameter: nn.Parameter, bucket: FlatBucket) -> None:
        """A gradient is complete: its part of the bucket becomes .grad, where autograd adds those of later passes."""
        if parameter.grad is not bucket.gradients.parts.get(parameter):
            parameter.grad = bucket.gradients.take(parameter)

    def average(self) -> None:
        """Reduce-scatter: block r of every bucket is averaged on rank r. Two buckets are under way at a time."""
        if self.closed:
            return
        before = None
        for bucket in self.buckets:
            self._complete(bucket)
            finish = start_reduce_scatter(bucket.gradients.gradient, self.me, bucket.index)
            if before is not None:
                self._finish(*before)
            before = bucket, finish
        self._finish(*before)
        self.closed = True

    def forget(self) -> None:
        """The memory of all gradients is free."""
        for bucket in self.buckets:
            bucket.forget_gradients()
        self.closed = False

    def _complete(self, bucket: FlatBucket) -> None:
        """What is in .grad now is what counts, whoever put it there."""
        for parameter in bucket.parameters:
            if parameter.grad is None:
                bucket.gradients.missing.add(parameter)
            else:
                self.take(parameter, bucket)
        bucket.gradients.mark_missing()

    def _finish(self, bucket: FlatBucket, finish: Callable[[Tensor], None]) -> None:
        own = bucket.block_of(bucket.gradients.gradient)  # (S,), whose memory will do unless a master copy steps
        average = own if bucket.master is None else bucket.new_block()
        finish(average)
        bucket.add_gradient(average)
