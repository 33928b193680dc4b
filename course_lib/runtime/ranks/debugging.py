"""breakpoint() in a rank: Python's own debugger, whose commands are typed at the notebook's cell.

The rank asks with what pdb has to say, the notebook answers with a line that the reader typed (conversation.py there).
Everything else is pdb's: n, s, c, p x, w, l, and any Python statement.
"""

import io
import linecache
import os
import pdb
import sys
from types import FrameType
from typing import TYPE_CHECKING, Any

from course_lib.runtime.ranks.messages import Asks, Continues, Typed

if TYPE_CHECKING:
    from course_lib.runtime.ranks.watcher import RankWatcher

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
        ours = [place for place, (frame, _) in enumerate(stack) if frame.f_globals.get("__name__") in CALL_THE_READER]
        first = ours[-1] + 1 if ours and ours[-1] < current else 0
        return stack[first:], current - first

    def interaction(self, *arguments: Any) -> None:
        """Stop at a frame: get the notebook's sources first, so that listings have text."""
        frame = arguments[0] if arguments and isinstance(arguments[0], FrameType) else None
        self.learn_sources(frame)
        super().interaction(*arguments)

    def learn_sources(self, frame: FrameType | None) -> None:
        """The text of cells, which only the notebook has."""
        unknown = set()
        while frame is not None:
            file = frame.f_code.co_filename
            if not linecache.getlines(file):
                unknown.add(file)
            frame = frame.f_back
        if unknown:
            for file, text in self.ask(Asks("", tuple(sorted(unknown)))).sources.items():
                linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)

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
