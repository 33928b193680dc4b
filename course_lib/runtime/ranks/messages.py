"""What the notebook and its ranks say to each other."""

from dataclasses import dataclass, field

from course_lib.runtime.instruments import pending
from course_lib.runtime.ranks.places import Frame

ASK, STOP, DISMISS = "where are you?", "stop that", "you may go"


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

    def summary(self) -> str:
        """One line for a trace, as in every message below."""
        return f"rank {self.rank} of {self.world_size}, {self.backend}, call of {len(self.call):,} bytes"


@dataclass(frozen=True)
class Whereabouts:
    """A rank at one moment. Two equal ones, and not busy in between: the rank has not moved."""

    frames: tuple[Frame, ...]  # of the main thread, outermost first
    waits_in: str | None  # the communication call that it is inside, None when it is elsewhere
    call: pending.GroupCall | None  # the same as data, where it is a call on a process group
    counts: dict[tuple[str, tuple[int, ...]], int]  # (op, group) -> communication calls begun so far
    busy_s: float  # how long its threads ran, or stood in line for a core
    clock_s: float  # the rank's clock when it looked

    def is_still_since(self, before: "Whereabouts", cpu_share: float) -> bool:
        """Whether nothing happened in between: same line, no new call, and less than `cpu_share` of a core wanted."""
        same = (self.frames, self.counts) == (before.frames, before.counts)
        return same and abs(self.busy_s - before.busy_s) < cpu_share * (self.clock_s - before.clock_s)

    def summary(self) -> str:
        """The innermost frame, and the call that it waits in."""
        at = f"{self.frames[-1].file}:{self.frames[-1].line}" if self.frames else "nowhere"
        return f"waits in {self.waits_in}, at {at}" if self.waits_in else f"at {at}"


@dataclass(frozen=True)
class Returned:
    """The function came back; `payload` is the pickle of (result, logs), `counts` its calls as in Whereabouts."""

    payload: bytes
    counts: dict[tuple[str, tuple[int, ...]], int]

    def summary(self) -> str:
        """The size of the result."""
        return f"payload of {len(self.payload):,} bytes"


@dataclass(frozen=True)
class Absent:
    """Stands for a rank that takes no part in a call; `counts` are its calls up to now, as in Whereabouts."""

    counts: dict[tuple[str, tuple[int, ...]], int]


@dataclass(frozen=True)
class Failed:
    """The function raised. `frames` lead from the function to the place, outermost first."""

    type_name: str
    message: str
    frames: tuple[Frame, ...]
    exception: bytes | None  # its pickle, where it has one
    in_communication: bool  # raised inside a communication call: perhaps only the echo of another rank's end
    members: tuple["Failed", ...] = ()  # of an exception group
    tensors: tuple[str, ...] = ()  # those that the failing line names, as text
    counts: dict[tuple[str, tuple[int, ...]], int] = field(default_factory=dict)  # as in Whereabouts

    def summary(self) -> str:
        """Type and message of the error."""
        return f"{self.type_name}: {self.message}"


@dataclass(frozen=True)
class Asks:
    """A rank at a breakpoint: what its debugger says before the reader's next command; or it asks for sources."""

    text: str
    files: tuple[str, ...] = ()  # cells whose text it does not have

    def summary(self) -> str:
        """How much was asked for, not the text."""
        return f"for the text of {len(self.files)} cells" if self.files else f"after {len(self.text):,} characters"


@dataclass(frozen=True)
class Typed:
    """The answer: a command, or None where nobody can type one."""

    line: str | None
    sources: dict[str, str] = field(default_factory=dict)

    def summary(self) -> str:
        """What the reader typed."""
        return "sources" if self.sources else repr(self.line)


@dataclass(frozen=True)
class Continues:
    """A rank leaves its breakpoint and goes on."""

    def summary(self) -> str:
        """Nothing: the kind of the message says it."""
        return ""


@dataclass(frozen=True)
class Quit:
    """The reader ended the launch from a breakpoint."""

    frames: tuple[Frame, ...]
    counts: dict[tuple[str, tuple[int, ...]], int] = field(default_factory=dict)

    def summary(self) -> str:
        """Nothing: the kind of the message says it."""
        return ""


@dataclass(frozen=True)
class Exited:
    """The function called sys.exit."""

    code: int | str | None
    frames: tuple[Frame, ...]
    counts: dict[tuple[str, tuple[int, ...]], int] = field(default_factory=dict)

    def summary(self) -> str:
        """The code that sys.exit was called with."""
        return f"exit code {self.code}"


@dataclass(frozen=True)
class Interrupted:
    """The reader has stopped the cell. No rank says this: the notebook's own thread does."""
