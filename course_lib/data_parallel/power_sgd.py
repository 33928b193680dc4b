"""PowerSGD: a gradient matrix is sent as two thin ones.

    M (a, b) the gradient of a matrix, summed over ranks      rank k, small: k (a + b) numbers instead of a b

    P = M Q,  orthonormal columns of P,  Q = M^T P:  M is about P Q^T

One step of power iteration towards M's best approximation of rank k; Q of the last step is where the next one starts
(warm start), so over the steps they become many. Both products are linear in M: adding them up over the ranks is an
all-reduce, which top-k cannot use. What P Q^T misses stays here and is added to the next gradient (error feedback).

Source: Vogels, Karimireddy and Jaggi 2019, "PowerSGD: Practical Low-Rank Gradient Compression".
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.data_parallel.buckets import Bucket
from course_lib.groups.packing import add_up, pack, unpack


class power_sgd_hook:  # noqa: N801  used beside the functions in hooks.py
    """Send every matrix in rank `rank`, and the rest, vectors and matrices too small to gain, as it is.

    Tensors of more dimensions count as matrices (first dimension, all others). One power_sgd_hook() serves one model.
    ValueError for a rank below 1.
    """

    def __init__(self, rank: int = 2, seed: int = 0) -> None:
        if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
            raise ValueError(f"rank={rank!r}: expected the rank of the approximation, a whole number of at least 1")
        self.rank, self.seed = rank, seed
        self.Q: dict[Bucket, list[Tensor]] = {}  # (b, k) for each matrix in the bucket
        self.error: dict[Bucket, Tensor] = {}  # (N,): what was not sent so far

    def __call__(self, bucket: Bucket) -> Callable[[], Tensor]:
        shapes = [self.shape_to_send(parameter) for parameter in bucket.parameters]
        # A copy in 32 bits: what is not sent stays in it, as small differences that 16 bits would round away.
        share = bucket.gradient.to(torch.promote_types(bucket.gradient.dtype, torch.float32), copy=True)  # (N,)
        if bucket in self.error:
            share += self.error[bucket]
        M, rest = split_by_dim(unpack(share, shapes))
        Q = self.Q.get(bucket) or self.first_guess(M, bucket.index)
        message, sent = pack([m @ q for m, q in zip(M, Q)] + rest)
        work = dist.all_reduce(message, group=bucket.group, async_op=True)

        def finish() -> Tensor:
            work.wait()
            P, exact = split_by_dim(unpack(message, sent))
            P = [torch.linalg.qr(p).Q for p in P]  # (a, k)
            mine = [m.mT @ p for m, p in zip(M, P)]  # (b, k)
            Q = [q.clone() for q in mine]
            # The second message has to wait for the first: Q is made with the orthonormal P of all ranks' sum.
            add_up(Q, bucket.group)
            for m, p, q in zip(M, P, mine):
                m -= p @ q.mT  # of this rank's share, P Q^T says all but this
            for part in rest:
                part.zero_()
            approximations, exact = iter([p @ q.mT for p, q in zip(P, Q)]), iter(exact)
            average, _ = pack([next(approximations if len(shape) == 2 else exact) for shape in shapes])  # (N,)
            self.keep(bucket, share, Q, bool(average.isfinite().all()))
            return average.to(bucket.gradient.dtype)

        return finish

    def shape_to_send(self, parameter: nn.Parameter) -> tuple[int, ...]:
        """(a, b) where rank k has fewer numbers, otherwise (number of elements,)."""
        a = parameter.shape[0] if parameter.dim() > 1 else 1
        b = parameter.numel() // a
        return (a, b) if self.rank * (a + b) < a * b else (parameter.numel(),)

    def first_guess(self, matrices: list[Tensor], seed: int) -> list[Tensor]:
        """Random, and the same on all ranks: they add up their products with it."""
        generator = torch.Generator("cpu").manual_seed(hash((self.seed, seed)))
        shapes = [(m.shape[1], self.rank) for m in matrices]
        return [torch.randn(shape, generator=generator, dtype=m.dtype, device="cpu").to(m.device)
                for shape, m in zip(shapes, matrices)]

    def keep(self, bucket: Bucket, error: Tensor, Q: list[Tensor], finite: bool) -> None:
        """Keep what this step left unsent of `bucket`, and its Q (m, rank), for the next one; forget both where it is
        not finite.
        """
        # An infinite gradient is a step that a gradient scaler skips. Kept as an error it would never go away.
        if finite:
            self.error[bucket], self.Q[bucket] = error, Q
        else:
            self.error.pop(bucket, None)
            self.Q.pop(bucket, None)


def split_by_dim(tensors: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """(the matrices, the others): only matrices can be sent as two thin ones."""
    return [tensor for tensor in tensors if tensor.dim() == 2], [tensor for tensor in tensors if tensor.dim() != 2]
