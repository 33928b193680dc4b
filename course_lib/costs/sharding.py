"""What each device holds, before anything is run: closed forms, and the exact bytes of this chapter's own classes.

    P  parameters      N  devices      K  bytes of optimiser state a parameter: 12 for Adam in mixed precision,
                                          a 4-byte master copy and two 4-byte moments

    data parallel   2P + 2P + KP          ZeRO-1, P_os      2P + 2P + KP/N      optimiser state shared out
                                          ZeRO-2, P_os+g    2P + (2P + KP)/N    and gradients
                                          ZeRO-3, P_os+g+p  (2P + 2P + KP)/N    and parameters

No torch in here: numbers only. GB are 1e9 bytes, as in the paper's tables.

Sources: Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", section 5 and
table 1; Ren et al. 2021, "ZeRO-Offload", for what lies on the host.
"""

from collections.abc import Sequence
from dataclasses import dataclass

STAGES = (0, 1, 2, 3)  # 0 is plain data parallelism
STAGE_NAMES = {0: "data parallel", 1: "ZeRO-1", 2: "ZeRO-2", 3: "ZeRO-3"}


@dataclass(frozen=True)
class Precision:
    """Bytes of one number: what computes, its gradient, a master copy (0: there is none), each moment."""

    name: str
    parameters: int
    gradients: int
    master: int
    moment: int


@dataclass(frozen=True)
class OptimizerKind:
    """An optimiser by how many numbers it remembers of each parameter."""

    name: str
    moments: int


PRECISIONS: dict[str, Precision] = {p.name: p for p in (
    Precision("fp32", 4, 4, 0, 4),
    Precision("mixed", 2, 2, 4, 4),
    Precision("mixed, fp32 gradients", 2, 4, 4, 4),
    Precision("pure 16-bit", 2, 2, 0, 2),
)}
OPTIMIZERS: dict[str, OptimizerKind] = {o.name: o for o in (
    OptimizerKind("adam", 2), OptimizerKind("sgd with momentum", 1), OptimizerKind("sgd", 0),
)}


@dataclass(frozen=True)
class Memory:
    """Bytes of one device by kind. `host`: what its process keeps in the host's memory, not part of `total`."""

    parameters: float
    gradients: float
    optimizer_state: float
    host: float = 0

    @property
    def total(self) -> float:
        return self.parameters + self.gradients + self.optimizer_state

    def by_kind(self) -> dict[str, float]:
        """On the device. The keys are those of record_memory."""
        return {"parameters": self.parameters, "gradients": self.gradients, "optimizer_state": self.optimizer_state}

    def __str__(self) -> str:
        parts = ", ".join(f"{kind.replace('_', ' ')} {value / 1e9:g} GB" for kind, value in self.by_kind().items())
        return f"{self.total / 1e9:g} GB: {parts}" + (f"; on the host {self.host / 1e9:g} GB" if self.host else "")


def state_bytes_per_parameter(precision: str = "mixed", optimizer: str = "adam") -> int:
    """K: the master copy and the moments. ValueError for a name that is not in PRECISIONS or OPTIMIZERS."""
    p = named(precision, PRECISIONS, "precision")
    return p.master + p.moment * named(optimizer, OPTIMIZERS, "optimizer").moments


def device_memory(num_parameters: float, num_devices: int, stage: int, precision: str = "mixed",
                  optimizer: str = "adam", offload: bool = False) -> Memory:
    """What parameters, gradients and optimiser state take on each of N devices: the formulas above, of any K.

    offload: the optimiser steps on the host, which then holds what it works on, this device's shard of: 32-bit masters
    (also where the parameters are 32-bit), moments, gradients. The device keeps what forward and backward read and
    write; a gradient that is sharded (stage 2 and 3) leaves it, and in stage 3 so do the parameters.
    ValueError for an unknown stage, precision or optimiser, or numbers that count nothing.
    """
    p, o = named(precision, PRECISIONS, "precision"), named(optimizer, OPTIMIZERS, "optimizer")
    if stage not in STAGES:
        raise ValueError(f"stage={stage!r}: expected 0 (plain data parallelism), 1, 2 or 3")
    if isinstance(num_devices, bool) or not isinstance(num_devices, int) or num_devices < 1:
        raise ValueError(f"num_devices={num_devices!r}: expected a whole number of at least 1")
    if not 0 < num_parameters < float("inf"):
        raise ValueError(f"num_parameters={num_parameters!r}: expected a number above 0")
    if offload and stage == 0:
        raise ValueError("offload=True with stage=0: expected a stage of at least 1, nothing is sharded in 0")
    P, N, K = num_parameters, num_devices, state_bytes_per_parameter(precision, optimizer)
    shares = [N if stage >= needed else 1 for needed in (3, 2, 1)]
    parameters, gradients, state = p.parameters * P / shares[0], p.gradients * P / shares[1], K * P / shares[2]
    if not offload:
        return Memory(parameters, gradients, state)
    host = (max(p.master, p.parameters) + p.gradients + p.moment * o.moments) * P / N
    return Memory(parameters if stage < 3 else 0, gradients if stage < 2 else 0, 0, host)


def largest_model(device_bytes: float, num_devices: int, stage: int, precision: str = "mixed",
                  optimizer: str = "adam", offload: bool = False) -> float:
    """P: the parameters whose states fill `device_bytes` on each device; infinite where the host holds all of them."""
    of_one = device_memory(1, num_devices, stage, precision, optimizer, offload).total
    return device_bytes / of_one if of_one else float("inf")


def sent_bytes(num_parameters: float, num_devices: int, stage: int, bytes_per_number: int = 2,
               micro_batches: int = 1) -> float:
    """What each device sends in a step. M bytes of parameters, and as many of gradients, make

        stage 0  all-reduce 2 (N-1)/N M                     stage 1  the same, cut in two: reduce-scatter, all-gather
        stage 2  reduce-scatter in each micro-batch         stage 3  two all-gathers and a reduce-scatter in each
    """
    if stage not in STAGES:
        raise ValueError(f"stage={stage!r}: expected 0 (plain data parallelism), 1, 2 or 3")
    once_around = (num_devices - 1) / num_devices * num_parameters * bytes_per_number
    return once_around * {0: 2, 1: 2, 2: micro_batches + 1, 3: 3 * micro_batches}[stage]


# Table 1 of the ZeRO paper: GB a device for Adam in mixed precision, by (parameters, N), as it is printed there
PAPER_MODELS = {"7.5B": 7.5e9, "128B": 128e9, "1T": 1e12}
PAPER_DEVICES = (1, 4, 16, 64, 256, 1024)
PAPER_TABLE_1: dict[tuple[str, int], tuple[float, float, float]] = {
    ("7.5B", 1): (120, 120, 120), ("7.5B", 4): (52.5, 41.3, 30), ("7.5B", 16): (35.6, 21.6, 7.5),
    ("7.5B", 64): (31.4, 16.6, 1.88), ("7.5B", 256): (30.4, 15.4, 0.47), ("7.5B", 1024): (30.1, 15.1, 0.12),
    ("128B", 1): (2048, 2048, 2048), ("128B", 4): (896, 704, 512), ("128B", 16): (608, 368, 128),
    ("128B", 64): (536, 284, 32), ("128B", 256): (518, 263, 8), ("128B", 1024): (513, 257, 2),
    ("1T", 1): (16000, 16000, 16000), ("1T", 4): (7000, 5500, 4000), ("1T", 16): (4750, 2875, 1000),
    ("1T", 64): (4187, 2218, 250), ("1T", 256): (4046, 2054, 62.5), ("1T", 1024): (4011, 2013, 15.6),
}


def table_1() -> dict[tuple[str, int], tuple[float, float, float]]:
    """The same 54 cells from the formulas. The paper rounds some of its own and cuts others off (4187.5 to 4187)."""
    return {(name, N): tuple(device_memory(P, N, stage).total / 1e9 for stage in (1, 2, 3))
            for name, P in PAPER_MODELS.items() for N in PAPER_DEVICES}


def shard_size(num_elements: int, num_devices: int) -> int:
    """Numbers in each shard: the last one is padded where N does not divide."""
    return -(-num_elements // num_devices)


def padded(num_elements: int, num_devices: int) -> int:
    return shard_size(num_elements, num_devices) * num_devices


def named(name: str, known: dict, what: str):
    if name not in known:
        raise ValueError(f"{what}={name!r}: expected one of {', '.join(known)}")
    return known[name]


def fill_buckets(sizes: Sequence[int], cap_bytes: float, bytes_per_number: int = 4) -> list[list[int]]:
    """Sizes of parameters of one dtype, in the buckets of a ZeroOptimizer: from the last to the first, up to the cap.
    """
    buckets: list[list[int]] = []
    for size in reversed(sizes):
        if not buckets or (sum(buckets[-1]) + size) * bytes_per_number > cap_bytes:
            buckets.append([])
        buckets[-1].append(size)
    return buckets


def pieces_of(bucket: Sequence[int], num_devices: int, rank: int) -> list[int]:
    """Numbers of each parameter of a bucket that lie in the block of place `rank`; none of 0."""
    S, start, found = shard_size(sum(bucket), num_devices), 0, []
    for size in bucket:
        found.append(min((rank + 1) * S, start + size) - max(rank * S, start))
        start += size
    return [numbers for numbers in found if numbers > 0]


def held_bytes(sizes: Sequence[int], num_devices: int, stage: int, rank: int = 0, bucket: float = 25 << 20,
               bytes_per_number: int = 4, moments: int = 2) -> Memory:
    """What one rank's states take between backward and zero_grad(), to the byte: padding included, nothing rounded.

    `sizes`: numbers in each trained parameter, all of one dtype of at least 32 bits, in the order in which they are
    given. AdamW counts steps besides its moments, 4 bytes for each tensor that it steps on; moments=0 counts none.
    """
    w, N = bytes_per_number, num_devices
    if stage == 0:
        return Memory(w * sum(sizes), w * sum(sizes), moments * w * sum(sizes) + 4 * len(sizes) * bool(moments))
    if stage == 3:
        own = sum(shard_size(size, N) for size in sizes)
        return Memory(w * own, w * own, moments * w * own + 4 * len(sizes) * bool(moments))
    buckets = fill_buckets(sizes, bucket, w)
    whole = sum(padded(sum(content), N) for content in buckets)
    pieces = [numbers for content in buckets for numbers in pieces_of(content, N, rank)]
    state = moments * w * sum(pieces) + 4 * len(pieces) * bool(moments)
    return Memory(w * whole, w * (whole if stage == 1 else whole // N), state)
