"""What training keeps in memory: parameters, gradients, the optimiser's state, activations.

    N  parameters     b  rows of a micro-batch     s  tokens in a row     h, a, d, f, V, l  as in counting.py

Sources: Rajbhandari et al. 2020 (ZeRO), section 3.1, for the bytes a parameter; Korthikanti et al. 2022, equations 1, 2
and 4, for activations. GB are 1e9 bytes.
"""

from dataclasses import dataclass

from course_lib.costs.checks import above_zero, at_least
from course_lib.facts import Shape


@dataclass(frozen=True)
class Precision:
    """Bytes of one parameter: the weight itself, its gradient, and what Adam keeps about it."""

    name: str
    parameters: int
    gradients: int
    optimizer_state: int
    activation_bytes: int  # of one number that is kept for the backward pass
    peak: str  # the number format of its matrix products: a key of Accelerator.peaks, "half" for bf16 or fp16
    note: str

    @property
    def bytes_per_parameter(self) -> int:
        return self.parameters + self.gradients + self.optimizer_state


PRECISIONS: dict[str, Precision] = {p.name: p for p in (
    Precision("fp32", 4, 4, 8, 4, "fp32", "Adam: a mean and a variance of 4 bytes each"),
    Precision("mixed", 2, 2, 12, 2, "half", "16-bit weights and gradients; Adam keeps the fp32 master weights too"),
    Precision("mixed, fp32 gradients", 2, 4, 12, 2, "half", "as Megatron-LM: gradients are added up in 32 bits"),
    Precision("pure 16-bit", 2, 2, 4, 2, "half", "no master weights: small updates are rounded away"),
)}
ZERO_STAGES = (0, 1, 2, 3)
USABLE = 0.9  # of a device's memory: the rest goes to the CUDA context, communication buffers and fragmentation


@dataclass(frozen=True)
class Memory:
    """Bytes on one device, by kind."""

    parameters: float
    gradients: float
    optimizer_state: float
    activations: float = 0.0

    @property
    def total(self) -> float:
        return self.parameters + self.gradients + self.optimizer_state + self.activations

    def by_kind(self) -> dict[str, float]:
        return {"parameters": self.parameters, "gradients": self.gradients, "optimizer state": self.optimizer_state,
                "activations": self.activations}

    def __str__(self) -> str:
        parts = ", ".join(f"{kind} {value / 1e9:g} GB" for kind, value in self.by_kind().items() if value)
        return f"{self.total / 1e9:g} GB: {parts}"


def precision_named(name: str) -> Precision:
    if name not in PRECISIONS:
        raise ValueError(f"precision={name!r}: expected one of {', '.join(PRECISIONS)}")
    return PRECISIONS[name]


def training_memory(num_parameters: float, precision: str = "mixed", zero_stage: int = 0, num_devices: int = 1,
                    activations: float = 0.0) -> Memory:
    """Bytes of each device that trains with Adam. `activations`, in bytes, are passed through: they depend on the
    batch.

    ZeRO shares out over the devices, in this order: optimiser state (1), gradients (2), parameters (3).
    ValueError for an unknown precision or stage, or numbers that count nothing.
    """
    p, N = precision_named(precision), above_zero(num_parameters, "num_parameters")
    n = at_least(num_devices, 1, "num_devices")
    if zero_stage not in ZERO_STAGES:
        raise ValueError(f"zero_stage={zero_stage!r}: expected 0, 1, 2 or 3")
    if not 0 <= activations < float("inf"):
        raise ValueError(f"activations={activations!r}: expected bytes, a finite number of 0 or more")
    share = [n if zero_stage >= stage else 1 for stage in (3, 2, 1)]
    return Memory(p.parameters * N / share[0], p.gradients * N / share[1], p.optimizer_state * N / share[2],
                  activations)


def lora_parameters(shape: Shape, rank: int, matrices: tuple[str, ...] = ("q", "v")) -> int:
    """Numbers that LoRA trains: r (in + out) for each adapted matrix of each layer (Hu et al. 2021, section 4.1)."""
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
                activations: float = 0.0) -> Memory:
    """Frozen weights of `frozen_bytes` each (2: 16 bits; 0.5: 4 bits, as QLoRA) and 16 bytes for each adapted
    number.
    """
    N, n = above_zero(num_parameters, "num_parameters"), above_zero(num_adapted, "num_adapted")
    trained = training_memory(n, "mixed")
    return Memory(above_zero(frozen_bytes, "frozen_bytes") * N + trained.parameters, trained.gradients,
                  trained.optimizer_state, activations)
