"""breakpoint() in a rank: Python's own debugger, whose commands are typed at the notebook's cell.

The rank asks with what pdb has to say, the notebook answers with a line that the reader typed. Everything else is
pdb's: n, s, c, p x, w, l, and any Python statement.

Several ranks may be at breakpoints, and there is one reader: a `Conversation` says whose turn it is. No clock runs
meanwhile. A rank keeps its turn from its first prompt until it continues or ends. It also loses it when what it was
told to do waits for other ranks, one of which is itself at a breakpoint: otherwise both would wait for ever.
"""

import io
import linecache
import os
import pdb
import sys
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

from course_lib.pictures.drawn import stable_output
from course_lib.runtime.ranks.frames import name_cells
from course_lib.runtime.ranks.messages import Asks, Continues, Typed

if TYPE_CHECKING:
    from course_lib.runtime.ranks.watcher import RankWatcher


class Conversation:
    """In the notebook's process. `prompt(rank, text)` puts a question to the reader, `answer(rank, Typed)` sends on."""

    def __init__(self, prompt: Callable[[int, str], None], answer: Callable[[int, Typed], None]) -> None:
        self._prompt, self._answer = prompt, answer
        self._waiting: deque[tuple[int, str]] = deque()  # ranks at a prompt that the reader does not see yet
        self._turn: int | None = None
        self._open: int | None = None  # the rank whose prompt the reader sees

    @property
    def stands_still(self) -> bool:
        """Whether a rank waits for the reader, so that nobody can be blamed for waiting."""
        return self._open is not None or bool(self._waiting)

    @property
    def goes_on(self) -> bool:
        """Whether a rank is being stepped through: it stands still, or does what the reader told it to."""
        return self._turn is not None or self.stands_still

    def take_question(self, rank: int, question: Asks) -> None:
        """A rank asks: for sources, which it gets at once, or for the reader's next line, for which ranks queue."""
        if question.files:
            texts = {file: "".join(linecache.getlines(file)) for file in question.files}
            self._answer(rank, Typed(None, texts))
            return
        self._waiting.append((rank, question.text))
        self._next()

    def take_line(self, rank: int, line: str | None) -> None:
        """The reader has answered; None where nobody can."""
        self._open = None
        self._answer(rank, Typed(line))
        if line is None:
            self.end_turn(rank)
        self._next()

    def end_turn(self, rank: int) -> None:
        """The rank goes on by itself, or its function has ended."""
        if self._turn == rank:
            self._turn = None
            self._next()

    def pass_on(self, waits: Callable[[int], bool]) -> None:
        """Give the turn to the next one in line if the rank that has it runs, and waits for other ranks."""
        if self._turn is not None and self._open is None and self._waiting and waits(self._turn):
            self.end_turn(self._turn)

    def _next(self) -> None:
        mine = [item for item in self._waiting if self._turn in (None, item[0])]
        if mine and self._open is None:
            self._waiting.remove(mine[0])
            self._turn = self._open = mine[0][0]
            self._prompt(*mine[0])


def read_command(rank: int, said: str) -> str | None:
    """What the reader types at this rank's prompt, below what its debugger has `said`; None where nobody can type.

    In the caller's thread.
    """
    if stable_output():
        return None
    print(*(f"[rank {rank}] {line}" for line in name_cells(said).splitlines()), sep="\n", flush=True)
    try:
        return input(f"[rank {rank}] (Pdb) ")
    except (EOFError, OSError, NotImplementedError):  # a closed stdin, pytest's, and a kernel's without a frontend
        return None


CALL_THE_READER = ("course_lib.runtime.ranks.rank", "course_lib.runtime.team.namespace")
NOBODY = ("breakpoint() needs somebody to type, and here nobody can: this notebook or test is executed without a "
          "reader. Take it out, or run the cell in JupyterLab")


def install(watcher: "RankWatcher") -> None:
    """In a rank: breakpoint() and pdb.set_trace() open the debugger at the cell's input line."""
    def hook(*_: Any, **__: Any) -> None:
        if os.environ.get("PYTHONBREAKPOINT") != "0":
            RankDebugger(watcher).set_trace(sys._getframe(1))

    sys.breakpointhook = pdb.set_trace = hook


class RankDebugger(pdb.Pdb):
    """pdb with the notebook in place of a terminal."""

    def __init__(self, watcher: "RankWatcher") -> None:
        self.watcher, self.said = watcher, io.StringIO()
        # Stepping out of the reader's function would lead into our own code.
        super().__init__(stdin=self, stdout=self.said, nosigint=True, skip=["course_lib.runtime.*"])
        self.prompt, self.use_rawinput = "", False

    def get_stack(self, *arguments: Any) -> tuple[list[Any], int]:
        """The reader's own frames, from the function given to launch on."""
        stack, current = super().get_stack(*arguments)
        ours = [at for at, (frame, _) in enumerate(stack) if frame.f_globals.get("__name__") in CALL_THE_READER]
        first = ours[-1] + 1 if ours and ours[-1] < current else 0
        return stack[first:], current - first

    def interaction(self, *arguments: Any) -> None:
        """Stop at a frame: get the text of cells first, which only the notebook has, so that listings have it."""
        frame = arguments[0] if arguments and isinstance(arguments[0], FrameType) else None
        unknown = set()
        while frame is not None:
            file = frame.f_code.co_filename
            if not linecache.getlines(file):
                unknown.add(file)
            frame = frame.f_back
        if unknown:
            for file, text in self.ask(Asks("", tuple(sorted(unknown)))).sources.items():
                linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        super().interaction(*arguments)

    def readline(self) -> str:
        """The next command: pdb reads it from here."""
        said = self.said.getvalue()
        self.said.seek(0)
        self.said.truncate()
        line = self.ask(Asks(said)).line
        if line is None:
            raise RuntimeError(NOBODY)
        return f"{line}\n"

    def ask(self, question: Asks) -> Typed:
        """Send a question to the notebook, and wait for what is typed there."""
        self.watcher.report(question)
        return self.watcher.typed.get()

    def set_continue(self) -> None:
        """Go on, and let the notebook know that clocks may run again."""
        super().set_continue()
        self.watcher.report(Continues())
