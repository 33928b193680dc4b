"""What this course's ZeRO holds and sends, to the byte: buckets, blocks and their padding, nothing rounded.

    N  devices      M  bytes of all parameters, and of their gradients      S  numbers in a block, or in a shard

Stages 1 and 2 lay gradients into buckets, from the model's end to its begin, and each rank owns one block of each.
Stage 3 cuts every parameter on its own. Where N does not divide, the last block is filled up with zeros.

Source: Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", section 7, for
what is sent.
"""

from collections.abc import Sequence

from course_lib.costs.buckets import cut_buckets
from course_lib.costs.memory import ZERO_STAGES, Memory


def sent_bytes(num_parameters: float, num_devices: int, stage: int, bytes_per_number: int = 2,
               micro_batches: int = 1) -> float:
    """What each device sends in a step. M bytes of parameters, and as many of gradients, make

        stage 0  all-reduce 2 (N-1)/N M                     stage 1  the same, cut in two: reduce-scatter, all-gather
        stage 2  reduce-scatter in each micro-batch         stage 3  two all-gathers and a reduce-scatter in each

    >>> [f"stage {stage}: {sent_bytes(7e9, num_devices=8, stage=stage) / 1e9:g} GB" for stage in (0, 1, 3)]
    ['stage 0: 24.5 GB', 'stage 1: 24.5 GB', 'stage 3: 36.75 GB']
    """
    if stage not in ZERO_STAGES:
        raise ValueError(f"stage={stage!r}: expected 0 (plain data parallelism), 1, 2 or 3")
    once_around = (num_devices - 1) / num_devices * num_parameters * bytes_per_number
    return once_around * {0: 2, 1: 2, 2: micro_batches + 1, 3: 3 * micro_batches}[stage]


def shard_size(num_elements: int, num_devices: int) -> int:
    """Numbers in each shard: the last one is padded where N does not divide.

    >>> shard_size(10, num_devices=4)  # 3 + 3 + 3 + 1, and two zeros
    3
    """
    return -(-num_elements // num_devices)


def padded_size(num_elements: int, num_devices: int) -> int:
    """num_elements, filled up to the next multiple of num_devices."""
    return shard_size(num_elements, num_devices) * num_devices


def fill_buckets(sizes: Sequence[int], cap_bytes: float, bytes_per_number: int = 4) -> list[list[int]]:
    """Sizes of parameters of one dtype, in the buckets of a ZeroOptimizer: from the last to the first, up to the cap.
    """
    # As backward makes them: the last layer's gradients come first, so their bucket is full first.
    backward = sizes[::-1]
    buckets = cut_buckets([size * bytes_per_number for size in backward], cap_bytes)
    return [[backward[index] for index in bucket] for bucket in buckets]


def pieces_of(bucket: Sequence[int], num_devices: int, rank: int) -> list[int]:
    """Numbers of each parameter of a bucket that lie in the block of place `rank`; none of 0."""
    S, start, found = shard_size(sum(bucket), num_devices), 0, []
    for size in bucket:
        found.append(min((rank + 1) * S, start + size) - max(rank * S, start))
        start += size
    return [numbers for numbers in found if numbers > 0]


def held_bytes(sizes: Sequence[int], num_devices: int, stage: int, rank: int = 0, bucket_bytes: float = 25 << 20,
               bytes_per_number: int = 4, num_moments: int = 2) -> Memory:
    """What one rank's states take between backward and zero_grad(), to the byte: padding included, nothing rounded.

    `sizes`: numbers in each trained parameter, all of one dtype of at least 32 bits, in the order in which they are
    given. AdamW counts steps besides its moments, 4 bytes for each tensor that it steps on; num_moments=0 counts none.
    """
    w, N = bytes_per_number, num_devices
    if stage == 0:
        return Memory(w * sum(sizes), w * sum(sizes), num_moments * w * sum(sizes) + 4 * len(sizes) * bool(num_moments))
    if stage == 3:
        own = sum(shard_size(size, N) for size in sizes)
        return Memory(w * own, w * own, num_moments * w * own + 4 * len(sizes) * bool(num_moments))
    buckets = fill_buckets(sizes, bucket_bytes, w)
    whole = sum(padded_size(sum(content), N) for content in buckets)
    pieces = [numbers for content in buckets for numbers in pieces_of(content, N, rank)]
    state = num_moments * w * sum(pieces) + 4 * len(pieces) * bool(num_moments)
    return Memory(w * whole, w * (whole if stage == 1 else whole // N), state)
