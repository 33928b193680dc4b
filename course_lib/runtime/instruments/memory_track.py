"""What one rank's memory did, as plain data: each storage's allocation, growth, end, and purpose."""

from dataclasses import dataclass, field, replace

import numpy as np

# From the weakest to the strongest claim on a storage: when two apply, the later one holds. An nn.Parameter
# that is merely seen in use counts as a parameter until somebody says that it is a master copy, say.
CLAIMS = ("other", "activations", "parameters", "optimizer_state", "gradients", "parameters")
OTHER, ACTIVATIONS, SEEN_PARAMETERS, OPTIMIZER_STATE, GRADIENTS, PARAMETERS = range(len(CLAIMS))
KINDS = ("parameters", "gradients", "optimizer_state", "activations", "other")


@dataclass(frozen=True)
class MemoryPhase:
    """A span, measured in torch operations since recording began; `depth` is 0 for an outermost span."""

    name: str
    start: int
    end: int
    depth: int


@dataclass
class Track:
    """One rank's memory. Storages are numbered; a claim may come late, and holds for the whole life."""

    rank: int
    changes: list[tuple[int, int, int]] = field(default_factory=list)  # (operations so far, storage, bytes)
    claims: list[int] = field(default_factory=list)  # storage -> index into CLAIMS
    phases: list[MemoryPhase] = field(default_factory=list)
    num_ops: int = 0
    on_host: set[int] = field(default_factory=set)  # storages in the host's memory, of a rank that has a GPU
    allocator_peak: int | None = None  # bytes, by the GPU's allocator

    def ops(self) -> np.ndarray:
        """Torch operations that had run at each change."""
        return np.array([op for op, _, _ in self.changes] or [0])

    def over_time(self) -> dict[str, np.ndarray]:
        """Bytes of each kind after each change."""
        _, storage, more = np.array(self.changes or [(0, 0, 0)], dtype=np.int64).T
        kind = np.array(CLAIMS)[np.array(self.claims or [OTHER])[storage]]
        return {name: np.where(kind == name, more, 0).cumsum() for name in KINDS}

    def total(self) -> np.ndarray:
        """Bytes of all kinds after each change."""
        return np.array([more for _, _, more in self.changes] or [0], dtype=np.int64).cumsum()

    def peak(self) -> int:
        """The most bytes that were held at once."""
        return int(self.total().max())

    def peak_on_gpu(self) -> int | None:
        """The most that was held at one time outside the host's memory; None where no allocator was asked."""
        if self.allocator_peak is None:
            return None
        on_gpu = [more for _, storage, more in self.changes if storage not in self.on_host]
        return int(np.array([0, *on_gpu], dtype=np.int64).cumsum().max())

    def composition(self, change: int) -> dict[str, int]:
        """Bytes of each kind after one change (an index, -1 is the last)."""
        return {kind: int(num_bytes[change]) for kind, num_bytes in self.over_time().items()}

    def at_peak(self) -> dict[str, int]:
        """The bytes of each kind at that moment."""
        return self.composition(int(self.total().argmax()))

    def phase_of_peak(self) -> str | None:
        """The innermost span open at the peak."""
        op = int(self.ops()[self.total().argmax()])
        around = [phase for phase in self.phases if phase.start < op <= phase.end]
        return max(around, key=lambda phase: phase.depth).name if around else None

    def followed_by(self, later: "Track") -> "Track":
        """One track of two that a rank recorded one after the other: what the first still held is let go."""
        alive: dict[int, int] = {}
        for _, storage, more in self.changes:
            alive[storage] = alive.get(storage, 0) + more
        ops, known = self.num_ops, len(self.claims)
        changes = self.changes + [(ops, storage, -held) for storage, held in alive.items() if held]
        changes += [(op + ops, storage + known, more) for op, storage, more in later.changes]
        phases = [replace(phase, start=phase.start + ops, end=phase.end + ops) for phase in later.phases]
        claims = self.claims + later.claims
        on_host = self.on_host | {storage + known for storage in later.on_host}
        asked = [peak for peak in (self.allocator_peak, later.allocator_peak) if peak is not None]
        return Track(self.rank, changes, claims, self.phases + phases, ops + later.num_ops, on_host,
                     max(asked, default=None))
