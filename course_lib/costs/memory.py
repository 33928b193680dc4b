"""What training keeps in a device's memory: parameters, gradients, the optimiser's state; what its allocator adds.

    N  parameters      n  devices      K  bytes of optimiser state a parameter: 12 for Adam in mixed precision,
                                          a 4-byte master copy and two 4-byte moments

    data parallel   2N + 2N + KN          ZeRO-1, P_os      2N + 2N + KN/n      optimiser state shared out
                                          ZeRO-2, P_os+g    2N + (2N + KN)/n    and gradients
                                          ZeRO-3, P_os+g+p  (2N + 2N + KN)/n    and parameters

Nothing here is rounded or padded: sharding.py counts this course's own classes to the byte, flops.py the activations.
GB are 1e9 bytes, as in the paper's tables.

A caching allocator takes more from a GPU than a run holds. By PyTorch's rules, followed here on paper, memory is asked
of the driver in segments and kept. A tensor is a block that is cut from a segment; a block that is freed joins its
free neighbours, but not those of another segment, and nothing ever moves. So memory can be free and of no use: in
pieces that are too small.

    requests  rounded up to 512 bytes, and given the smallest free block that is large enough
    segments  2 MiB for requests up to 1 MiB; else 20 MiB below 10 MiB, and above that the request's own size, to 2 MiB
    cutting   where at least 512 bytes are left over, of the larger kind of segments more than 1 MiB

Sources: Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", sections 3.1
and 5; Ren et al. 2021, "ZeRO-Offload", for what lies on the host; Hu et al. 2021, "LoRA"; Dettmers et al. 2022, "8-bit
Optimizers via Block-wise Quantization" (a byte for each moment; the scale of each block of them is left out);
PyTorch, c10/cuda/CUDACachingAllocator.cpp. Not followed of it: streams, expandable segments, and that free segments
are given back when the device has no more.
"""

from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from course_lib.facts import PAPER_DEVICES, PAPER_MODELS, Shape
from course_lib.facts.fact import above_zero, at_least

STAGE_NAMES = {0: "data parallel", 1: "ZeRO-1", 2: "ZeRO-2", 3: "ZeRO-3"}
ZERO_STAGES = tuple(STAGE_NAMES)
MIB = 2**20
USABLE = 0.9  # of a device's memory: the rest goes to the CUDA context, communication buffers and fragmentation


@dataclass(frozen=True)
class Precision:
    """Bytes of one number: the weight that computes, its gradient, a master copy (0: there is none), each moment."""

    name: str
    parameters: int
    gradients: int
    master: int
    moment: int
    activation_bytes: int  # of one number that is kept for the backward pass
    peak: str  # the number format of its matrix products: a key of Accelerator.peaks, "half" for bf16 or fp16
    note: str


@dataclass(frozen=True)
class OptimizerKind:
    """An optimiser by how many numbers it remembers of each parameter; moment_bytes: of each, 0 for the precision's."""

    name: str
    num_moments: int
    moment_bytes: int = 0

    def state_bytes(self, precision: Precision) -> int:
        """Bytes that the optimiser remembers of a parameter, beside its master copy."""
        return self.num_moments * (self.moment_bytes or precision.moment)


PRECISIONS: dict[str, Precision] = {p.name: p for p in (
    Precision("fp32", 4, 4, 0, 4, 4, "fp32", "Adam: a mean and a variance of 4 bytes each"),
    Precision("mixed", 2, 2, 4, 4, 2, "half",
              "16-bit weights and gradients; Adam keeps the fp32 master weights too"),
    Precision("mixed, fp32 gradients", 2, 4, 4, 4, 2, "half", "as Megatron-LM: gradients are added up in 32 bits"),
    Precision("pure 16-bit", 2, 2, 0, 2, 2, "half", "no master weights: small updates are rounded away"),
)}
OPTIMIZERS: dict[str, OptimizerKind] = {o.name: o for o in (
    OptimizerKind("adam", 2), OptimizerKind("adam8bit", 2, 1), OptimizerKind("sgd with momentum", 1),
    OptimizerKind("sgd", 0),
)}


@dataclass(frozen=True)
class Memory:
    """Bytes on one device, by kind. `host`: what its process keeps in the host's memory, not part of `total`."""

    parameters: float
    gradients: float
    optimizer_state: float
    activations: float = 0
    host: float = 0

    @property
    def total(self) -> float:
        """Bytes on the device, of all kinds."""
        return self.parameters + self.gradients + self.optimizer_state + self.activations

    def by_kind(self) -> dict[str, float]:
        """Bytes on the device, by kind; the keys are those of record_memory."""
        return {"parameters": self.parameters, "gradients": self.gradients, "optimizer_state": self.optimizer_state,
                "activations": self.activations}

    def __str__(self) -> str:
        parts = ", ".join(f"{kind.replace('_', ' ')} {value / 1e9:g} GB" for kind, value in self.by_kind().items()
                          if value or kind != "activations")
        return f"{self.total / 1e9:g} GB: {parts}" + (f"; on the host {self.host / 1e9:g} GB" if self.host else "")


def find_precision(name: str) -> Precision:
    """The Precision of this name. ValueError, with all names, where there is none."""
    if name not in PRECISIONS:
        raise ValueError(f"precision={name!r}: expected one of {', '.join(PRECISIONS)}")
    return PRECISIONS[name]


def find_optimizer(name: str) -> OptimizerKind:
    """The OptimizerKind of this name. ValueError, with all names, where there is none."""
    if name not in OPTIMIZERS:
        raise ValueError(f"optimizer={name!r}: expected one of {', '.join(OPTIMIZERS)}")
    return OPTIMIZERS[name]


def state_bytes_per_parameter(precision: str = "mixed", optimizer: str = "adam") -> int:
    """K: the master copy and the moments. ValueError for a name that is not in PRECISIONS or OPTIMIZERS.

    >>> state_bytes_per_parameter(), state_bytes_per_parameter(optimizer="adam8bit")
    (12, 6)
    """
    p = find_precision(precision)
    return p.master + find_optimizer(optimizer).state_bytes(p)


def training_memory(num_parameters: float, precision: str = "mixed", zero_stage: int = 0, num_devices: int = 1,
                    activations: float = 0.0, optimizer: str = "adam") -> Memory:
    """Bytes of each device that trains. `activations`, in bytes, are passed through: they depend on the batch.

    ZeRO shares out over the devices, in this order: optimiser state (1), gradients (2), parameters (3).
    ValueError for an unknown precision, optimiser or stage, or numbers that count nothing.

    >>> print(training_memory(7e9))
    112 GB: parameters 14 GB, gradients 14 GB, optimizer state 84 GB
    >>> print(training_memory(7e9, zero_stage=3, num_devices=8))
    14 GB: parameters 1.75 GB, gradients 1.75 GB, optimizer state 10.5 GB
    """
    p, K = find_precision(precision), state_bytes_per_parameter(precision, optimizer)
    N, n = above_zero(num_parameters, "num_parameters"), at_least(num_devices, 1, "num_devices")
    if zero_stage not in ZERO_STAGES:
        raise ValueError(f"zero_stage={zero_stage!r}: expected 0, 1, 2 or 3")
    if not 0 <= activations < float("inf"):
        raise ValueError(f"activations={activations!r}: expected bytes, a finite number of 0 or more")
    share = [n if zero_stage >= stage else 1 for stage in (3, 2, 1)]
    return Memory(p.parameters * N / share[0], p.gradients * N / share[1], K * N / share[2], activations)


def device_memory(num_parameters: float, num_devices: int, stage: int, precision: str = "mixed",
                  optimizer: str = "adam", offload: bool = False) -> Memory:
    """What parameters, gradients and optimiser state take on each of n devices, and on the host of each.

    offload: the optimiser steps on the host, which then holds what it works on, this device's shard of: 32-bit masters
    (also where the parameters are 32-bit), moments, gradients. The device keeps what forward and backward read and
    write; a gradient that is sharded (stage 2 and 3) leaves it, and in stage 3 so do the parameters.
    ValueError for an unknown stage, precision or optimiser, or numbers that count nothing.

    >>> print(device_memory(7e9, num_devices=8, stage=2))
    26.25 GB: parameters 14 GB, gradients 1.75 GB, optimizer state 10.5 GB
    >>> print(device_memory(7e9, num_devices=8, stage=2, offload=True))
    14 GB: parameters 14 GB, gradients 0 GB, optimizer state 0 GB; on the host 12.25 GB
    """
    if stage not in ZERO_STAGES:
        raise ValueError(f"stage={stage!r}: expected 0 (plain data parallelism), 1, 2 or 3")
    on_device = training_memory(num_parameters, precision, stage, num_devices, optimizer=optimizer)
    if not offload:
        return on_device
    if stage == 0:
        raise ValueError("offload=True with stage=0: expected a stage of at least 1, nothing is sharded in 0")
    p, state = find_precision(precision), find_optimizer(optimizer).state_bytes(find_precision(precision))
    host = (max(p.master, p.parameters) + p.gradients + state) * num_parameters / num_devices
    return replace(on_device, parameters=on_device.parameters if stage < 3 else 0,
                   gradients=on_device.gradients if stage < 2 else 0, optimizer_state=0, host=host)


def table_1() -> dict[tuple[str, int], tuple[float, float, float]]:
    """The 54 cells of the ZeRO paper's table 1 (facts.PAPER_TABLE_1) from the formulas, in GB."""
    return {(name, n): tuple(device_memory(N, n, stage).total / 1e9 for stage in (1, 2, 3))
            for name, N in PAPER_MODELS.items() for n in PAPER_DEVICES}


def lora_parameters(shape: Shape, rank: int, matrices: tuple[str, ...] = ("q", "v")) -> int:
    """Numbers that LoRA trains: r (in + out) for each adapted matrix of each layer (Hu et al. 2021, section 4.1).

    >>> from course_lib.facts import model
    >>> lora_parameters(model("Llama 3 8B").shape, rank=16)  # of 8 billion
    6815744
    """
    r, h = at_least(rank, 1, "rank"), shape.hidden_size
    heads, kv_heads = shape.num_heads * shape.d, shape.num_kv_heads * shape.d
    sizes = {"q": (h, heads), "k": (h, kv_heads), "v": (h, kv_heads), "o": (heads, h), "gate": (h, shape.ffn_size),
             "up": (h, shape.ffn_size), "down": (shape.ffn_size, h)}
    if not shape.gated:
        del sizes["gate"]
    if not matrices or set(matrices) - set(sizes) or len(set(matrices)) < len(matrices):
        raise ValueError(f"matrices={matrices!r}: expected different ones of {', '.join(sizes)}")
    return shape.num_layers * sum(r * sum(sizes[name]) for name in matrices)


def lora_memory(num_parameters: float, num_adapted: float, frozen_bytes: float = 2.0,
                activations: float = 0.0, zero_stage: int = 0, num_devices: int = 1, optimizer: str = "adam") -> Memory:
    """Frozen weights of `frozen_bytes` each (2: 16 bits; 0.5: 4 bits, as QLoRA) and, with Adam, 16 bytes for each
    adapted number. ZeRO shares out the adapters' as it does all numbers, and in stage 3 frozen weights, too.
    """
    N, n = above_zero(num_parameters, "num_parameters"), above_zero(num_adapted, "num_adapted")
    trained = training_memory(n, "mixed", zero_stage, num_devices, optimizer=optimizer)
    frozen = above_zero(frozen_bytes, "frozen_bytes") * N / (num_devices if zero_stage == 3 else 1)
    return Memory(frozen + trained.parameters, trained.gradients, trained.optimizer_state, activations)


SMALLEST_BLOCK, SMALL, OWN_SEGMENT = 512, MIB, 10 * MIB
SEGMENTS = {True: 2 * MIB, False: 20 * MIB}  # small or not


@dataclass(frozen=True, order=True)
class Stretch:
    """`size` bytes at `start` of a segment, in the pool for small requests or in the other one. Ordered by size."""

    small: bool
    size: int
    segment: int
    start: int


@dataclass
class CachingAllocator:
    """`held` and `reserved`: bytes that tensors have, and that segments have, now."""

    held: int = 0
    reserved: int = 0
    num_segments: int = 0
    free: list[Stretch] = field(default_factory=list)  # in order
    in_pieces: tuple[int, int] = (0, 0)  # the largest request that free memory would have been enough for, and that

    def allocate(self, num_bytes: int) -> Stretch:
        """A block of at least `num_bytes`. ValueError for none."""
        if num_bytes < 1:
            raise ValueError(f"num_bytes={num_bytes}: expected at least one")
        size = round_up(num_bytes, SMALLEST_BLOCK)
        small = size <= SMALL
        block = next((each for each in self.free if each.small == small and each.size >= size), None)
        if block is None:
            free = sum(each.size for each in self.free if each.small == small)
            self.in_pieces = max(self.in_pieces, (size, free)) if free >= size else self.in_pieces
            block = self._new_segment(small, size)
        else:
            self.free.remove(block)
        rest = block.size - size
        if rest >= SMALLEST_BLOCK if small else rest > SMALL:
            insort(self.free, Stretch(small, rest, block.segment, block.start + size))
            block = Stretch(small, size, block.segment, block.start)
        self.held += block.size
        return block

    def release(self, block: Stretch) -> None:
        """Put `block` among the free ones, joined with its free neighbours."""
        self.held -= block.size
        start, end = block.start, block.start + block.size
        for other in [each for each in self.free if each.segment == block.segment]:
            if other.start + other.size == start or other.start == end:
                self.free.remove(other)
                start, end = min(start, other.start), max(end, other.start + other.size)
        insort(self.free, Stretch(block.small, end - start, block.segment, start))

    def _new_segment(self, small: bool, size: int) -> Stretch:
        num_bytes = SEGMENTS[small] if size < OWN_SEGMENT else round_up(size, SEGMENTS[True])
        self.num_segments += 1
        self.reserved += num_bytes
        return Stretch(small, num_bytes, self.num_segments, 0)


@dataclass(frozen=True)
class Reservation:
    """Bytes after each change of a run: what its tensors had, and what the allocator had taken for them.

    `in_pieces`: the largest request for which a new segment was taken though as much was free, and how much was.
    """

    held: tuple[int, ...]
    reserved: tuple[int, ...]
    in_pieces: tuple[int, int]

    @property
    def overhead(self) -> float:
        """How much more was reserved than ever held: 0.25 is a quarter more."""
        return max(self.reserved) / max(self.held) - 1


def reserve(changes: Iterable[tuple[int, int]]) -> Reservation:
    """Follow a run's allocations: (tensor, bytes) in order, more than 0 where it is made and less where it is freed.

    ValueError where a tensor is made twice, or freed and not there.
    """
    allocator, blocks, held, reserved = CachingAllocator(), {}, [], []
    for tensor, num_bytes in changes:
        if (num_bytes > 0) == (tensor in blocks):
            raise ValueError(f"tensor {tensor} is {'made twice' if num_bytes > 0 else 'freed and not there'}")
        if num_bytes > 0:
            blocks[tensor] = allocator.allocate(num_bytes)
        else:
            allocator.release(blocks.pop(tensor))
        held.append(allocator.held)
        reserved.append(allocator.reserved)
    return Reservation(tuple(held), tuple(reserved), allocator.in_pieces)


def round_up(num_bytes: int, step: int) -> int:
    """`num_bytes`, up to the next multiple of `step`."""
    return -(-num_bytes // step) * step
