"""Stack frames and tracebacks as data: where in the reader's code a rank is, told as `cell In[7], line 3`."""

import linecache
import os
import re
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType, TracebackType

_PACKAGE = str(Path(__file__).resolve().parents[2])
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
_GRADERS = re.compile(r"[/\\]\d\d_\w+[/\\](?:on_rank|judge\w*)\.py$")  # of an exercise, beside its solution
_DUMPED = re.compile(r'File "(.*)", line (\d+) in (.*)')
_RUNTIME = os.path.join("course_lib", "runtime")
_COMMUNICATION = (os.path.join("torch", "distributed"), os.path.join(_RUNTIME, "instruments", "pending"),
                  os.path.join(_RUNTIME, "staging"))
_COLLECTIVES = os.path.join("course_lib", "collectives"), os.path.join("course_lib", "groups")

_MAX_FOLDED = 8  # functions that call each other in turn, told once
_SHOWN_TIMES = 3  # what comes no more often than this is told each time


@dataclass(frozen=True)
class Frame:
    """One line of a stack, as plain data that can cross a process boundary.

    `columns` are the first and last column of the expression being evaluated (None where Python does not know, or it
    goes on over several lines).
    """

    file: str
    line: int
    columns: tuple[int, int] | None
    function: str
    instruction: int = -1

    @property
    def is_readers(self) -> bool:
        """Whether the reader wrote this line: neither the course, nor torch, nor any installed library."""
        if self.file.startswith("<"):
            return not self.file.startswith("<frozen")
        return not (self.file.startswith((_PACKAGE, *_LIBRARIES)) or "site-packages" in self.file
                    or _GRADERS.search(self.file))

    @property
    def is_communication(self) -> bool:
        """Whether the frame is of the code that sends and receives, and not of whoever calls it."""
        return any(part in self.file for part in _COMMUNICATION)

    @property
    def is_in_collective(self) -> bool:
        """Also in the course's own: a backend that aborts in a thread of its own finds the rank just beside torch's."""
        return self.is_communication or any(part in self.file for part in _COLLECTIVES)

    def where(self) -> str:
        """`cell In[7], line 3`, or `train.py, line 3`; for the notebook's process, which knows its cells."""
        cell = _cells().get(self.file)
        if cell is not None:
            return f"cell In[{cell}], line {self.line}"
        return f"{_short(self.file)}, line {self.line}"

    def code(self) -> str:
        """The line itself, or of a long one the expression being evaluated; empty where the source is not at hand."""
        line = linecache.getline(self.file, self.line)
        statement = line.strip()
        if len(statement) > 80 and self.columns:
            return line.encode()[self.columns[0] : self.columns[1]].decode(errors="replace").strip()  # they count bytes
        return statement


def with_cells(text: str) -> str:
    """`text` with In[2] in place of the file names that IPython gives to cells."""
    for file, number in _cells().items():
        text = text.replace(file, f"In[{number}]")
    return text


def _cells() -> dict[str, int]:
    """File name -> execution count of the cells of this notebook."""
    if "IPython" not in sys.modules:
        return {}
    shell = sys.modules["IPython"].get_ipython()
    return getattr(shell.compile, "_filename_map", {}) if shell is not None else {}


def _short(file: str) -> str:
    path = Path(file)
    site_packages = [parent for parent in path.parents if parent.name == "site-packages"]
    for root in (Path(_PACKAGE).parent, *map(Path, _LIBRARIES), *site_packages):
        if path.is_relative_to(root):
            return str(path.relative_to(root))
    return path.name


def frames_of_traceback(traceback: TracebackType | None, skip: str) -> tuple[Frame, ...]:
    """The frames of an exception, outermost first, without the leading ones that belong to the file `skip`."""
    frames = []
    while traceback is not None:
        if frames or traceback.tb_frame.f_code.co_filename != skip:
            frames.append(_frame(traceback.tb_frame.f_code, traceback.tb_lineno, traceback.tb_lasti))
        traceback = traceback.tb_next
    return tuple(frames)


def frames_of_thread(innermost: FrameType | None) -> tuple[Frame, ...]:
    """The frames of a running thread, outermost first."""
    seen = []
    # The thread goes on whenever this loop lets it. Once, f_back was then no frame (seen on Python 3.11.7): what has
    # been read until there is still the innermost part of the stack. No frame is kept for longer than its turn: the
    # tensors of a function that returns meanwhile would live on in it.
    while isinstance(innermost, FrameType):
        seen.append((innermost.f_code, innermost.f_lineno, innermost.f_lasti))
        innermost = innermost.f_back
    return tuple(_frame(*where) for where in reversed(seen))


def _frame(code: CodeType, line: int | None, instruction: int) -> Frame:
    start, end, first, last = _position(code, instruction)
    line = line or start or code.co_firstlineno
    columns = (first, last) if first is not None and last is not None and start == end == line else None
    return Frame(code.co_filename, line, columns, code.co_name, instruction)


def _position(code: CodeType, instruction: int) -> tuple[int | None, int | None, int | None, int | None]:
    nothing = (None, None, None, None)
    return next(islice(code.co_positions(), max(instruction, 0) // 2, None), nothing)


def readers_frame(frames: tuple[Frame, ...]) -> Frame | None:
    """The innermost frame that the reader wrote; without one, the innermost of all."""
    for frame in reversed(frames):
        if frame.is_readers:
            return frame
    return frames[-1] if frames else None


def story(frames: tuple[Frame, ...]) -> Iterator[str]:
    """The frames as lines to print: the reader's own, then one line for the library in which it ended."""
    mine = [frame for frame in frames if frame.is_readers]
    for frames_once, more in fold_repeats(mine):
        for frame in frames_once:
            name = "" if frame.function.startswith("<") else f" in {frame.function}"
            yield f"{frame.where()}{name}:  {frame.code()}".rstrip(": ")
        if more:
            yield f"... {more} more of these" + (f" {len(frames_once)} lines" if len(frames_once) > 1 else "")
    if frames and not frames[-1].is_readers and mine:
        yield f"(raised inside {_short(frames[-1].file)}, line {frames[-1].line}, in {frames[-1].function})"
    elif frames and not mine:
        for frame in frames[-3:]:
            yield f"{frame.where()} in {frame.function}:  {frame.code()}".rstrip(": ")


def fold_repeats(frames: Sequence[Frame]) -> Iterator[tuple[Sequence[Frame], int]]:
    """(frames, how often they come again right behind): endless recursion, also of a few functions in turn, is short.

    A stretch that does not repeat itself often comes frame by frame, with 0.
    """
    start = 0
    while start < len(frames):
        length, times = max(((length, _times(frames, start, length)) for length in range(1, _MAX_FOLDED + 1)),
                            key=lambda found: found[0] * (found[1] - 1))
        # Two or three equal lines are quicker to read than a sentence about them.
        if times <= _SHOWN_TIMES:
            length = times = 1
        yield frames[start : start + length], times - 1
        start += length * times


def _times(frames: Sequence[Frame], start: int, length: int) -> int:
    """How often the `length` frames from `start` on stand there in a row."""
    block, times = _lines(frames[start : start + length]), 1
    while _lines(frames[start + times * length : start + (times + 1) * length]) == block:
        times += 1
    return times


def _lines(frames: Sequence[Frame]) -> list[tuple[str, int]]:
    return [(frame.file, frame.line) for frame in frames]


def frames_of_dump(path: str) -> tuple[Frame, ...]:
    """The main thread's frames, outermost first, from a file written by faulthandler; empty until it is complete."""
    try:
        text = Path(path).read_text(errors="replace")
    except OSError:
        return ()
    stacks = [_DUMPED.findall(part) for part in text.split("(most recent call first):")]
    of_main = [stack for stack in stacks if any(os.path.basename(file) == "rank.py" for file, _, _ in stack)]
    if not of_main:
        return ()
    return tuple(Frame(file, int(line), None, function) for file, line, function in reversed(of_main[0]))
