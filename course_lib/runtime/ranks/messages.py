"""What the notebook and its ranks say to each other."""

from dataclasses import dataclass, field

from course_lib.runtime.instruments import pending
from course_lib.runtime.ranks.frames import Frame

ASK, STOP, DISMISS = "where are you?", "stop that", "you may go"
Counts = dict[tuple[str, tuple[int, ...]], int]  # (op, group's ranks) -> communication calls begun so far


@dataclass(frozen=True)
class Task:
    """All that a rank is told: who it is, and one call. Ranks that stay get one after the other."""

    rank: int
    world_size: int
    backend: str
    store: str  # how the paths of all files of these ranks begin
    seed: int
    threads: int
    timeout_s: float
    call: bytes  # cloudpickle of (fn, args, kwargs)
    group: int = 0  # counts the process groups of these ranks; with another number than before, it is made anew
    mark: bytes = b""  # what the rank writes to its streams when the call has ended; they end with the rank without it

    @property
    def meeting(self) -> str:
        """The file through which the ranks of this group find each other."""
        return f"{self.store}-group-{self.group}"

    @property
    def dump(self) -> str:
        """Where the rank writes its stack on SIGUSR1, for when its interpreter is held and cannot answer."""
        return f"{self.store}-dump-{self.rank}"

    @property
    def multiprocessing_folder(self) -> str:
        """Where multiprocessing keeps its sockets."""
        return f"{self.store}-mp"


@dataclass(frozen=True)
class Whereabouts:
    """A rank at one moment. Two equal ones, and not busy in between: the rank has not moved."""

    frames: tuple[Frame, ...]  # of the main thread, outermost first
    waits_in: str | None  # the communication call that it is inside, None when it is elsewhere
    call: pending.GroupCall | None  # the same as data, where it is a call on a process group
    counts: Counts
    busy_s: float  # how long its threads ran, or stood in line for a core
    clock_s: float  # the rank's clock when it looked

    def is_unmoved_since(self, before: "Whereabouts") -> bool:
        """Whether it is on the same line, and has made no call in between."""
        return (self.frames, self.counts) == (before.frames, before.counts)

    def is_still_since(self, before: "Whereabouts", cpu_share: float) -> bool:
        """Whether nothing happened in between: same line, no new call, and less than `cpu_share` of a core wanted."""
        busy_s, passed_s = abs(self.busy_s - before.busy_s), self.clock_s - before.clock_s
        return self.is_unmoved_since(before) and busy_s < cpu_share * passed_s


@dataclass(frozen=True)
class Returned:
    """The function came back; `payload` is the pickle of (result, logs), `counts` its communication calls."""

    payload: bytes
    counts: Counts


@dataclass(frozen=True)
class Absent:
    """Stands for a rank that takes no part in a call; `counts` are its calls up to now."""

    counts: Counts


@dataclass(frozen=True)
class Failed:
    """The function raised. `frames` lead from the function to where it did, outermost first."""

    type_name: str
    message: str
    frames: tuple[Frame, ...]
    exception: bytes | None  # its pickle, where it has one
    in_communication: bool  # raised inside a communication call: perhaps only the echo of another rank's end
    tensors: tuple[str, ...] = ()  # those that the failing line names, as text
    counts: Counts = field(default_factory=dict)


@dataclass(frozen=True)
class Asks:
    """A rank at a breakpoint: what its debugger says before the reader's next command; or it asks for sources."""

    text: str
    files: tuple[str, ...] = ()  # cells whose text it does not have


@dataclass(frozen=True)
class Typed:
    """The answer: a command, or None where nobody can type one."""

    line: str | None
    sources: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Continues:
    """A rank leaves its breakpoint and goes on."""


@dataclass(frozen=True)
class Quit:
    """The reader ended the launch from a breakpoint."""

    frames: tuple[Frame, ...]
    counts: Counts = field(default_factory=dict)


@dataclass(frozen=True)
class Interrupted:
    """The reader has stopped the cell. No rank says this: the notebook's own thread does."""
