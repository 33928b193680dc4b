"""What this course's ZeRO holds and sends, to the byte: buckets, blocks and their padding, nothing rounded; its peak.

    N  devices      M  bytes of all parameters, and of their gradients      S  numbers in a block, or in a shard
    U  bytes of parameters in a unit, and of its gradients                  B  bytes of a bucket

Buckets are many gradients in one message, cut by one rule wherever the course sends, holds or simulates them. A message
costs alpha + beta M (links.py), so many small ones pay alpha again and again, and a single large one cannot start
before the last gradient is there. Stages 1 and 2 lay gradients into buckets, from the model's end to its begin, and
each rank owns one block of each. Stage 3 cuts every parameter on its own. Where N does not divide, the last block is
filled up with zeros.

The most memory that a step takes: ZeRO changes neither the activations nor what operations work with. So one process
that shards nothing shows them, event by event (`watch`); `step_peak` goes through the same events and counts what a
stage has in memory at each:

    stage 0, 1   each bucket of gradients that has been begun, B
    stage 2      buckets that fill, B; the one under way, B, and the blocks of it that arrive, B (N-1)/N; of those
                 before it B/N
    stage 3      the unit at work, U, around it the whole's rest, and `prefetch` units that arrive, U; gradients as they
                 come; those of the unit before, under way, U, and a block of them that arrives, U/N; of those before it
                 U/N

That is all that ZeroOptimizer and FullyShardedDataParallel allocate while they take a step. What the optimiser needs to
compute is not counted: on a GPU torch's AdamW steps on all tensors at once (foreach), with 4 bytes more for each number
that it steps on. Where backward's peak is higher than that, the step's does not show.

Sources: Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", section 7, for
what is sent; Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", section 3.2.3.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from course_lib.costs.memory import ZERO_STAGES, Memory


def cut_buckets(sizes_bytes: Sequence[int], cap_bytes: float) -> list[list[int]]:
    """Cut `sizes_bytes` in their order into buckets of at most `cap_bytes`: the indices of each.

    What is larger than `cap_bytes` has a bucket of its own. ValueError for negative sizes or a negative cap.

    >>> cut_buckets([10, 20, 30, 100, 5], cap_bytes=50)
    [[0, 1], [2], [3], [4]]
    """
    if cap_bytes < 0 or any(size < 0 for size in sizes_bytes):
        raise ValueError(f"cap_bytes={cap_bytes!r}, sizes_bytes={list(sizes_bytes)!r}: expected bytes, 0 or more")
    buckets: list[list[int]] = []
    held_bytes = 0
    for index, size in enumerate(sizes_bytes):
        if not buckets or held_bytes + size > cap_bytes:
            buckets.append([])
            held_bytes = 0
        buckets[-1].append(index)
        held_bytes += size
    return buckets


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


FORWARD, LEFT, BACKWARD, GRADIENT = "forward", "left", "backward", "gradient"
Added = Iterator[tuple[float, float]]  # bytes that a stage adds when an event happens, and from then to the next


@dataclass(frozen=True)
class Event:
    """An event, and the bytes in memory besides parameters and finished gradients, until the next one.

    FORWARD, BACKWARD: `unit` begins to compute. LEFT: it has ended its forward pass. GRADIENT: that of a parameter of
    the unit is complete.
    """

    kind: str
    unit: str
    parameter: int | None  # its place in model.parameters()
    at_first: int  # bytes when it happens, the gradient itself included
    most: int


@dataclass(frozen=True)
class Watched:
    """A step as one process takes it. `sizes`: the numbers in each parameter; `units`: the unit that it belongs to."""

    events: tuple[Event, ...]
    sizes: tuple[int, ...]
    units: tuple[str, ...]
    bytes_per_number: int


def step_peak(seen: Watched, num_devices: int, stage: int, rank: int = 0, bucket_bytes: float = 25 << 20,
              prefetch: int = 1, num_moments: int = 2) -> int:
    """The most bytes that `rank` holds in a step like the one `seen`, with the optimiser's state there from the start.

    `bucket_bytes`: for stages 0 to 2; `prefetch`: units, for stage 3; `num_moments`: as in held_bytes.
    """
    states = held_bytes(seen.sizes, num_devices, stage, rank, bucket_bytes, seen.bytes_per_number, num_moments)
    if stage == 3:
        added = units_at_work(seen, num_devices, prefetch)
    else:
        added = (begun_buckets if stage < 2 else buckets_under_way)(seen, num_devices, bucket_bytes)
    most = max(max(event.at_first + at_first, event.most + then)
               for event, (at_first, then) in zip(seen.events, added))
    return round(states.parameters + states.optimizer_state + most)


# Stages 0 to 2

def assign_buckets(seen: Watched, N: int, cap: float) -> tuple[list[int], list[int]]:
    """The bucket of each parameter; the bytes of each bucket, padding included."""
    filled = fill_buckets(seen.sizes, cap, seen.bytes_per_number)
    backwards = chain.from_iterable([index] * len(content) for index, content in enumerate(filled))
    return list(backwards)[::-1], [padded_size(sum(content), N) * seen.bytes_per_number for content in filled]


def begun_buckets(seen: Watched, N: int, cap: float) -> Added:
    """Bytes that ZeRO-1 holds besides after each event: (at that moment, from then on). A bucket is laid out with its
    first gradient and stays.
    """
    bucket_of, B = assign_buckets(seen, N, cap)
    begun: set[int] = set()
    for event in seen.events:
        if event.kind == GRADIENT:
            begun.add(bucket_of[event.parameter])
        held = sum(B[index] for index in begun)
        yield held, held


def buckets_under_way(seen: Watched, N: int, cap: float) -> Added:
    """As begun_buckets, of ZeRO-2: buckets that are being filled, the one that is being sent, an N-th of each that was.
    """
    bucket_of, B = assign_buckets(seen, N, cap)
    missing = [bucket_of.count(index) for index in range(len(B))]
    filling: set[int] = set()
    sent = 0

    def bytes_now() -> float:
        under_way = B[sent - 1] + B[sent - 1] * (N - 1) / N if sent else 0
        return sum(B[index] for index in filling) + under_way + sum(B[:max(sent - 1, 0)]) / N

    for event in seen.events:
        at_first = 0.0
        if event.kind == GRADIENT:
            filling.add(bucket_of[event.parameter])
            missing[bucket_of[event.parameter]] -= 1
            at_first = bytes_now()
            while sent < len(B) and not missing[sent]:  # memory for what arrives, before the one before is finished
                own_of_before = B[sent - 1] / N if sent else 0
                moved = seen.sizes[event.parameter] * seen.bytes_per_number  # the gradient lies in its bucket by now
                at_first = max(at_first, bytes_now() + B[sent] * (N - 1) / N + own_of_before - moved)
                filling.remove(sent)
                sent += 1
        yield at_first, bytes_now()


# Stage 3

def units_at_work(seen: Watched, N: int, prefetch: int) -> Added:
    """As begun_buckets, of ZeRO-3: units gathered now, those fetched `prefetch` ahead, gradients until they leave."""
    U = {event.unit: 0 for event in seen.events}
    for size, unit in zip(seen.sizes, seen.units):
        U[unit] += padded_size(size, N) * seen.bytes_per_number
    order = [event.unit for event in seen.events if event.kind == FORWARD]
    order_back = [event.unit for event in seen.events if event.kind == LEFT][::-1]
    whole: set[str] = set()
    ahead: set[str] = set()
    gradients, under_way, own = dict.fromkeys(U, 0), 0, 0.0
    for event in seen.events:
        unit, laid_out = event.unit, 0
        if event.kind == GRADIENT:
            gradients[unit] += seen.sizes[event.parameter] * seen.bytes_per_number
        elif event.kind == LEFT:
            whole.remove(unit)
            ahead = ahead if whole else set()
        elif unit not in whole:
            if event.kind == BACKWARD:
                order = order_back
                for before in whole - {""}:  # autograd has gone through it
                    whole.remove(before)
                    own, under_way, gradients[before] = own + under_way / N, U[before], 0
            whole.add(unit)
            laid_out = U[unit] + sum(U[name] for name in ahead - {unit})  # whole, while the message is still there
            place = order.index(unit)
            ahead = set(order[place + 1:place + 1 + prefetch])
        ahead -= whole
        held = sum(U[name] for name in whole) + sum(gradients.values()) + under_way * (1 + 1 / N) + own
        yield held + laid_out, held + sum(U[name] for name in ahead)
