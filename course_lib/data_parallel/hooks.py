"""Smaller gradients: hooks for DistributedDataParallel that send fewer bytes. `HOOKS`, at the end, has all of them.

    n ranks      N numbers in the bucket, 4 bytes each      k = fraction N

    all_reduce_hook   2 (n-1)/n 4N bytes sent       exact
    fp16_hook         2 (n-1)/n 2N                  10 bits of mantissa; above 65,504 infinite, below 6e-8 zero
    bf16_hook         2 (n-1)/n 2N                  7 bits of mantissa, the range of float32
    top_k_hook        (n-1) 8k                      grows with n: everyone's numbers differ, and are gathered
    power_sgd_hook    2 (n-1)/n 4 rank (a + b)      for a matrix (a, b), as two thin ones

A hook is called with a bucket whose `gradient` is this rank's share g_r / n. It starts the communication and returns a
function; called when backward has ended, that one waits and gives the sum over the ranks, which is the average.

PowerSGD sends M (a, b), the gradient of a matrix, in rank k: k (a + b) numbers instead of a b.

    P = M Q,  orthonormal columns of P,  Q = M^T P:  M is about P Q^T

One step of power iteration towards M's best approximation of rank k; Q of the last step is where the next one starts
(warm start), so over the steps they become many. Both products are linear in M: adding them up over the ranks is an
all-reduce, which top-k cannot use. What P Q^T misses stays here and is added to the next gradient (error feedback).
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.data_parallel.averaging import Bucket
from course_lib.groups.exchange import start_gather, wait_then
from course_lib.groups.gradients import Shapes, add_up, pack, unpack
from course_lib.groups.membership import is_whole

# Starts to add up bucket.gradient (N,) over bucket.group; returns a function that waits for the sum and gives it (N,).
Hook = Callable[[Bucket], Callable[[], Tensor]]


def all_reduce_hook(bucket: Bucket) -> Callable[[], Tensor]:
    """The plain way: one all-reduce of the bucket as it is."""
    return add_up_as(bucket.gradient.dtype, bucket)


def fp16_hook(bucket: Bucket) -> Callable[[], Tensor]:
    """Half the bytes. Adds in float16 as well, so small gradients vanish: pair it with a gradient scaler."""
    return add_up_as(torch.float16, bucket)


def bf16_hook(bucket: Bucket) -> Callable[[], Tensor]:
    """Half the bytes, with float32's range and less of its precision."""
    return add_up_as(torch.bfloat16, bucket)


def add_up_as(dtype: torch.dtype, bucket: Bucket) -> Callable[[], Tensor]:
    """Start the all-reduce of a bucket's gradient in `dtype`; the function returned gives the sum in its own dtype."""
    message = bucket.gradient.to(dtype)  # (N,)
    work = dist.all_reduce(message, group=bucket.group, async_op=True)
    return wait_then(work, lambda: message.to(bucket.gradient.dtype))


class top_k_hook:  # noqa: N801  used beside the functions above
    """Send the `fraction` of the numbers that are largest in magnitude, 8 bytes each, and keep the rest for later.

    What is not sent is not lost but added to the next gradient (error feedback): a small gradient that always points
    the same way is sent in the end. The first `warm_up` steps send everything: there gradients change fastest, and
    what comes late is out of date. One top_k_hook() serves one model; it holds N numbers a bucket. ValueError for a
    fraction outside (0, 1], or a warm_up that is no number of steps.
    """

    def __init__(self, fraction: float = 0.01, warm_up: int = 0) -> None:
        if not (isinstance(fraction, (int, float)) and 0 < fraction <= 1):
            raise ValueError(f"fraction={fraction!r}: expected the part of the numbers to send, above 0 and at most 1")
        if not is_whole(warm_up, 0):
            raise ValueError(f"warm_up={warm_up!r}: expected the steps that send everything, 0 or more")
        self.fraction, self.warm_up = fraction, warm_up
        self.steps: Counter[Bucket] = Counter()  # made so far
        self.error: dict[Bucket, Tensor] = {}  # (N,) each: what was not sent so far

    def __call__(self, bucket: Bucket) -> Callable[[], Tensor]:
        self.steps[bucket] += 1
        if self.steps[bucket] <= self.warm_up:
            return all_reduce_hook(bucket)
        wanted = bucket.gradient + self.error[bucket] if bucket in self.error else bucket.gradient.clone()  # (N,)
        indices = wanted.abs().topk(math.ceil(self.fraction * len(wanted)), sorted=False).indices  # (k,)
        values = wanted[indices]
        wanted[indices] = 0
        self.error[bucket] = wanted
        # Gathered and not added up: each rank chose other positions, and a sum needs numbers in the same ones.
        finish_values = start_gather(values, bucket.group)  # n times (k,)
        finish_indices = start_gather(indices.to(torch.int32), bucket.group)

        def finish() -> Tensor:
            total = torch.zeros_like(bucket.gradient)
            for of_rank, chosen in zip(finish_values(), finish_indices()):  # in one order on all ranks: the same bits
                total.index_add_(0, chosen.long(), of_rank)
            # A step that a gradient scaler skips: kept, it would never go away. The GPU decides, and nobody waits.
            wanted.masked_fill_(~total.isfinite().all(), 0)
            return total

        return finish


class power_sgd_hook:  # noqa: N801  used beside the functions above
    """Send every matrix in rank `rank`, and the rest, vectors and matrices too small to gain, as it is.

    Tensors of more dimensions count as matrices (first dimension, all others). One power_sgd_hook() serves one model.
    ValueError for a rank below 1.
    """

    def __init__(self, rank: int = 2, seed: int = 0) -> None:
        if not is_whole(rank, 1):
            raise ValueError(f"rank={rank!r}: expected the rank of the approximation, a whole number of at least 1")
        self.rank, self.seed = rank, seed
        self.Q: dict[Bucket, list[Tensor]] = {}  # (b, k) for each matrix in the bucket
        self.guess: dict[Bucket, list[Tensor]] = {}  # what it was at first
        self.error: dict[Bucket, Tensor] = {}  # (N,): what was not sent so far

    def __call__(self, bucket: Bucket) -> Callable[[], Tensor]:
        shapes = [shape_to_send(parameter.shape, self.rank) for parameter in bucket.parameters]
        # A copy in 32 bits: what is not sent stays in it, as small differences that 16 bits would round away.
        share = bucket.gradient.to(torch.promote_types(bucket.gradient.dtype, torch.float32), copy=True)  # (N,)
        if bucket in self.error:
            share += self.error[bucket]
        M, rest = split_by_dim(unpack(share, shapes))
        if bucket not in self.guess:
            self.guess[bucket] = self.first_guess(M, bucket.index)
        Q = self.Q.get(bucket) or self.guess[bucket]
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
            self.keep(bucket, share, Q, average.isfinite().all())
            return average.to(bucket.gradient.dtype)

        return finish

    def first_guess(self, matrices: list[Tensor], seed: int) -> list[Tensor]:
        """Random, and the same on all ranks: they add up their products with it."""
        generator = torch.Generator("cpu").manual_seed(hash((self.seed, seed)))
        shapes = [(m.shape[1], self.rank) for m in matrices]
        return [torch.randn(shape, generator=generator, dtype=m.dtype, device="cpu").to(m.device)
                for shape, m in zip(shapes, matrices)]

    def keep(self, bucket: Bucket, error: Tensor, Q: list[Tensor], finite: Tensor) -> None:
        """Keep what this step left unsent of `bucket`, and its Q (m, rank), for the next one; begin anew with both
        where it was not `finite`, which nobody waits for: the GPU decides.
        """
        # An infinite gradient is a step that a gradient scaler skips. Kept as an error it would never go away.
        self.error[bucket] = error.masked_fill_(~finite, 0)
        self.Q[bucket] = [torch.where(finite, q, at_first) for q, at_first in zip(Q, self.guess[bucket])]


def shape_to_send(shape: Sequence[int], rank: int) -> tuple[int, ...]:
    """Of a parameter's gradient: (a, b) where two matrices of `rank` have fewer numbers, otherwise (a b,)."""
    a = shape[0] if len(shape) > 1 else 1
    b = math.prod(shape) // a
    return (a, b) if rank * (a + b) < a * b else (a * b,)


def thin_numbers(shape: Sequence[int], rank: int) -> int:
    """How many numbers power_sgd_hook sends of it."""
    sent = shape_to_send(shape, rank)
    return rank * sum(sent) if len(sent) == 2 else sent[0]


def split_by_dim(tensors: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """(the matrices, the others): only matrices can be sent as two thin ones."""
    return [tensor for tensor in tensors if tensor.dim() == 2], [tensor for tensor in tensors if tensor.dim() != 2]


@dataclass(frozen=True)
class PublishedHook:
    """make(): the hook of one model; make(...) with other options. sent_bytes(shapes, n): what one of n ranks sends of
    a bucket of float32 gradients of these shapes.
    """

    make: Callable[..., Hook]
    sent_bytes: Callable[[Shapes, int], float]
    source: str


def all_reduce_bytes(shapes: Shapes, n: int, bytes_per_number: int = 4) -> float:
    """What one of n ranks sends to add up tensors of these shapes."""
    return 2 * (n - 1) / n * bytes_per_number * count_numbers(shapes)


def count_numbers(shapes: Shapes) -> int:
    return sum(map(math.prod, shapes))


TENTH = 0.049  # of the numbers, 8 bytes each: on two ranks a tenth of float32's bytes
SIXTEEN_BITS = partial(all_reduce_bytes, bytes_per_number=2)

# Whoever adds a hook adds a row: its tests, benchmarks.compression and chapter 3 go through them.
HOOKS = {
    "float32": PublishedHook(lambda: all_reduce_hook, all_reduce_bytes, "Li et al. 2020, PyTorch Distributed"),
    "fp16": PublishedHook(lambda: fp16_hook, SIXTEEN_BITS, "Micikevicius et al. 2018, Mixed Precision Training"),
    "bf16": PublishedHook(lambda: bf16_hook, SIXTEEN_BITS, "Kalamkar et al. 2019, A Study of BFLOAT16"),
    "top-k": PublishedHook(
        partial(top_k_hook, TENTH), lambda shapes, n: (n - 1) * 8 * math.ceil(TENTH * count_numbers(shapes)),
        "Lin et al. 2018, Deep Gradient Compression; Stich et al. 2018, Sparsified SGD with Memory"),
    "PowerSGD": PublishedHook(
        partial(power_sgd_hook, 4), lambda shapes, n: all_reduce_bytes([[thin_numbers(s, 4)] for s in shapes], n),
        "Vogels, Karimireddy and Jaggi 2019, PowerSGD: Practical Low-Rank Gradient Compression"),
}
