"""Prompts of pdb from several ranks at breakpoints, and one reader: whose turn it is. No clock runs meanwhile.

A rank keeps its turn from its first prompt until it continues or ends. It also loses it when what it was told to do
waits for other ranks, one of which is itself at a breakpoint: otherwise both would wait for ever.
"""

import linecache
from collections import deque
from collections.abc import Callable

from course_lib.runtime.ranks.messages import Asks, Typed
from course_lib.runtime.ranks.output import stable_output
from course_lib.runtime.ranks.places import with_cells


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
        if self._open is not None:
            return
        mine = [item for item in self._waiting if self._turn in (None, item[0])]
        if mine:
            self._waiting.remove(mine[0])
            self._turn = self._open = mine[0][0]
            self._prompt(*mine[0])


def read_command(rank: int, said: str) -> str | None:
    """What the reader types at this rank's prompt, below what its debugger has `said`; None where nobody can type.

    In the caller's thread.
    """
    if stable_output():
        return None
    print(*(f"[rank {rank}] {line}" for line in with_cells(said).splitlines()), sep="\n", flush=True)
    try:
        return input(f"[rank {rank}] (Pdb) ")
    except (EOFError, OSError, NotImplementedError):  # a closed stdin, pytest's, and a kernel's without a frontend
        return None
