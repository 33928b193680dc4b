"""Weigh what a rank holds: `with record_memory(model=model, optimizer=optimizer) as log:` around steps.

Bytes are counted by storage (views and tied weights once), from each allocation to its free, in kinds:

    parameters       parameters of the named modules, and every other nn.Parameter allocated inside the block
    gradients        what lies in their .grad
    optimizer_state  every tensor in the state of an optimiser: AdamW's two moments and its step count (a
                     scalar tensor of 4 bytes a parameter), SGD's momentum; master copies of parameters
    activations      what autograd saved for the backward pass, and tensors that share their memory
    other            the rest: buffers, batches, results, gradients of activations, communication buffers

A storage has one kind for its whole life, the strongest that applied. Tensors from before the block count
when they are named or when autograd saves them. It costs some 8 us a torch operator: to weigh, not to time.

Sizes are those of the storages, the GPU's and the host's together (offload keeps some there). On a GPU the allocator's
own peak stands beside them: `allocator_peak`, to be held against `peak_on_gpu`, which leaves the host's out. It is
higher by what storages do not show: rounding (CUDA's allocator gives out multiples of 512 bytes), workspaces of
kernels, such as cuBLAS's, results that an operator keeps to itself, and tensors from before the block that nobody
named. Neither sees what is not the allocator's: free memory that it holds in reserve, CUDA's context, NCCL's buffers.
Source: https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management
"""

import ctypes
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import psutil
from torch import Tensor, nn
from torch.optim import Optimizer

from course_lib.pictures.units import human_bytes
from course_lib.runtime.instruments.memory_tracker import MemoryTracker, Sources
from course_lib.runtime.instruments.recordings import Recording, keep_recording, this_rank
from course_lib.runtime.instruments.storage_book import CLAIM_OF_KIND, KINDS, MemoryPhase, Track
from course_lib.runtime.torch_private import tree_leaves


@dataclass(frozen=True, repr=False)
class MemoryLog(Recording):
    """What `ranks` held, in bytes. A log of several ranks answers for the one with the highest peak."""

    ranks: tuple[int, ...]
    tracks: tuple[Track, ...]
    records = "memory"

    @classmethod
    def merge(cls, logs: Iterable[Recording]) -> "MemoryLog":
        """One log of all memory logs among `logs`; several of one rank follow each other."""
        tracks: dict[int, Track] = {}
        for log in logs:
            for track in log.tracks if isinstance(log, cls) else ():
                earlier = tracks.get(track.rank)
                tracks[track.rank] = earlier.followed_by(track) if earlier else track
        return cls(tuple(sorted(tracks)), tuple(tracks[rank] for rank in sorted(tracks)))

    def by_rank(self, rank: int) -> "MemoryLog":
        """What one rank recorded. ValueError for a rank that recorded nothing."""
        self.check_has(rank)
        return MemoryLog((rank,), (self.tracks[self.ranks.index(rank)],))

    @property
    def _fullest(self) -> Track:
        return max(self.tracks, key=Track.peak, default=Track(rank=0))

    @property
    def peak(self) -> int:
        """The most that was held at one time."""
        return self._fullest.peak()

    @property
    def peak_on_gpu(self) -> int | None:
        """The most that was held at one time on the rank's GPU; known when the block has ended. None on the CPU."""
        return self._fullest.peak_on_gpu()

    @property
    def allocator_peak(self) -> int | None:
        """The most bytes that the GPU's allocator had given out at one time, of whatever kind; known when the block has
        ended. None on the CPU, and for a kind of GPU whose allocator keeps no statistics.
        """
        return self._fullest.allocator_peak

    @property
    def at_peak(self) -> dict[str, int]:
        """What the peak is made of."""
        return self._fullest.at_peak()

    @property
    def peak_by_kind(self) -> dict[str, int]:
        """The most that was held of each kind, each at its own time."""
        return {kind: int(num_bytes.max()) for kind, num_bytes in self._fullest.over_time().items()}

    @property
    def current(self) -> int:
        """What is held now; after the block, what was held at its end."""
        return int(self._fullest.total()[-1])

    @property
    def by_kind(self) -> dict[str, int]:
        """What `current` is made of."""
        return self._fullest.composition(-1)

    def over_time(self, kind: str | None = None) -> list[int]:
        """Bytes of `kind`, or of all kinds, after each allocation and each free, in order."""
        if kind is not None and kind not in KINDS:
            raise ValueError(f"unknown kind {kind!r}; the kinds are {', '.join(KINDS)}")
        track = self._fullest
        return (track.total() if kind is None else track.over_time()[kind]).tolist()

    @property
    def phases(self) -> list[MemoryPhase]:
        """The spans inside the block, inner ones first; start and end count torch operations."""
        return self._fullest.phases

    def finding(self) -> str:
        if not self.ranks:
            return "MemoryLog: nothing was recorded; wrap the code in `with record_memory(model=model):`"
        return f"MemoryLog: {self._headline()}: {self._made_of()}"

    def _headline(self) -> str:
        highest, lowest = human_bytes(self.peak), human_bytes(min(map(Track.peak, self.tracks)))
        if lowest != highest:
            peak = f"{len(self.ranks)} ranks peak between {lowest} and {highest}"
        else:
            peak = f"{self.who()} peaks at {highest}"
        phase = self._fullest.phase_of_peak()
        return f"{peak}, in {phase}" if phase else peak

    def _made_of(self) -> str:
        sizes = {kind.replace("_", " "): human_bytes(size) for kind, size in self.at_peak.items() if size}
        return ", ".join(f"{kind} {size}" for kind, size in sizes.items()) or "nothing was allocated"

    def png(self) -> bytes | None:
        if not self.peak:
            return None
        from course_lib.runtime.instruments.pictures import draw_memory  # matplotlib is slow to import

        whose = f" on rank {self._fullest.rank}" if len(self.ranks) > 1 else ""
        detail = f"at the peak{whose}: {self._made_of()}"
        if self.allocator_peak is not None:
            counted, given_out = human_bytes(self.peak_on_gpu), human_bytes(self.allocator_peak)
            detail += f"; on the GPU at most {counted}, {given_out} by its allocator"
        return draw_memory(self.tracks, self._headline(), detail)


@contextmanager
def record_memory(**named: Any) -> Iterator[MemoryLog]:
    """Record what this rank holds, from each allocation to its free; the log can be read at any time.

    named: modules and optimisers under any name (their parameters, gradients, buffers and state count from
    the start), and tensors, or (nested) lists or dicts of them, or a function that returns them, under the
    name of their kind: `record_memory(model=model, optimizer=optimizer, optimizer_state=lambda: shards)`.
    A function is asked again after every backward pass, around every optimiser step, and at the end.

    Raises ValueError for anything else.
    """
    has_module = any(isinstance(value, nn.Module) for value in named.values())
    sources: list[tuple[str, Callable[[], Any]]] = []  # of what kind, and what has the tensors now
    for name, value in named.items():
        if isinstance(value, nn.Module):
            sources += [("parameters", lambda m=value: list(m.parameters())),
                        ("other", lambda m=value: list(m.buffers()))]
        elif isinstance(value, Optimizer):
            # What it steps and no module owns are master copies; or parameters, where no model was named.
            stepped = "optimizer_state" if has_module or "parameters" in named else "parameters"
            sources += [("optimizer_state", lambda o=value: o.state),
                        (stepped, lambda o=value: [group["params"] for group in o.param_groups])]
        else:
            sources.append((name, tensor_source(name, value)))
    track = Track(this_rank())
    log = MemoryLog((track.rank,), (track,))
    claims: Sources = [(CLAIM_OF_KIND[kind], source) for kind, source in sources]
    with keep_recording(log), MemoryTracker(track, claims).watch():
        yield log


def process_bytes() -> int:
    """What this process alone holds of the machine's memory, by the operating system, which knows no tensors.

    glibc gives back before what was freed; elsewhere (macOS, Windows) that is counted, too.
    """
    with suppress(AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
    return psutil.Process().memory_full_info().uss


def tensor_source(name: str, value: Any) -> Callable[[], Any]:
    """Tensors that were named by their kind. ValueError for what is no tensor, or no kind."""
    held = list(value) if isinstance(value, Iterator) else value  # model.parameters() can be read only once
    source = held if callable(held) else lambda: held
    if name not in KINDS:
        raise ValueError(f"record_memory({name}=...) got {type(value).__name__}. A module or an optimiser "
                         "may have any name; tensors, lists and functions need the name of their kind: "
                         f"{', '.join(KINDS)}")
    wrong = first_non_tensor(source())
    if wrong is not None:
        raise ValueError(f"record_memory({name}=...) expects tensors, (nested) lists or dicts of them, or "
                         f"a function that returns them; got {type(wrong).__name__}: {wrong!r:.80}")
    return source


def first_non_tensor(value: Any) -> Any:
    """The first thing in `value` that is no tensor (and not None: a gradient not there yet), or None."""
    if type(value) is list and all(isinstance(item, Tensor) for item in value):  # nearly always, and much faster
        return None
    return next((leaf for leaf in tree_leaves(value) if leaf is not None and not isinstance(leaf, Tensor)), None)
