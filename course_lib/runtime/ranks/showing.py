"""What ranks print, and what they show by `display(...)` and `plt.show()`: from their pipes to under the cell.

In a notebook `display` is a built-in function, and `plt.show()` asks matplotlib's backend; a rank gets both from here.
A thing that is shown travels down the rank's own stdout, in order with its prints, as one line: MARK, and the base64 of
its MIME bundle. The notebook reads the pipes and writes the rank before each line.
"""

import base64
import builtins
import json
import os
import re
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

from course_lib.pictures.drawn import stable_output, with_alt_text
from course_lib.runtime import context
from course_lib.runtime.ranks.processes import RankProcess

MARK = b"\0course_lib shows "
INLINE = ("inline", "module://matplotlib_inline.backend_inline", "module://ipykernel.pylab.backend_inline")
BACKEND = "module://course_lib.runtime.ranks.pyplot_backend"

_END = re.compile(rb"\r\n|\n|\r")

Bundle = tuple[dict[str, Any], dict[str, Any]]  # MIME type -> data, and metadata


def install() -> None:
    """In a rank: `display` is there, as in a cell, and plt.show() in a notebook's rank shows under the cell."""
    builtins.display = display
    if os.environ.get("MPLBACKEND") in INLINE:
        os.environ["MPLBACKEND"] = BACKEND
        if "matplotlib" in sys.modules:  # the server had imported it ahead, and then the variable comes too late
            sys.modules["matplotlib"].use(BACKEND)


def display(*objects: Any, **_: Any) -> None:
    """Show each of `objects` under the cell, marked with this rank."""
    for value in objects:
        data, metadata = _formatter().format(value)
        if "matplotlib.figure" in sys.modules and not stable_output():
            data = _add_words(value, data)
        send_bundle(data, metadata)


def show_open_figures() -> None:
    """plt.show() for who has not called it, where it shows under the cell."""
    if os.environ.get("MPLBACKEND") == BACKEND and (pyplot := sys.modules.get("matplotlib.pyplot")) is not None:
        pyplot.show()


def _add_words(value: Any, data: dict[str, Any]) -> dict[str, Any]:
    """A figure's picture with what the figure says of itself; anything else has words of its own, or none."""
    from matplotlib.figure import Figure

    from course_lib.pictures.painter import words_of

    return with_alt_text(data, words_of(value)) if isinstance(value, Figure) else data


def send_bundle(data: dict[str, Any], metadata: dict[str, Any]) -> None:
    """Write what is to be shown into this rank's stdout as one marked line, behind all that was printed before."""
    text = {mime: base64.b64encode(content).decode() if isinstance(content, bytes) else content
            for mime, content in data.items()}
    line = MARK + base64.b64encode(json.dumps([text, metadata], default=str).encode()) + b"\n"
    sys.stdout.flush()
    while line:  # a pipe takes a large picture in pieces
        line = line[os.write(1, line):]


def parse_line(line: bytes) -> tuple[bytes, Bundle | None]:
    """What was printed before on the same line, and what is shown; None for a line of text alone."""
    printed, mark, content = line.partition(MARK)
    return printed, (tuple(json.loads(base64.b64decode(content))) if mark else None)


@cache
def _formatter() -> Any:
    """IPython's own, which knows every object's _repr_html_ and so on; and figures, which it learns in a notebook."""
    from IPython.core.formatters import DisplayFormatter  # slow to import, and few ranks show anything
    from IPython.core.pylabtools import print_figure

    formatter = DisplayFormatter()
    formatter.formatters["image/png"].for_type_by_name(
        "matplotlib.figure", "Figure",
        lambda figure: print_figure(figure, "png", metadata={"Software": None}))  # the same bytes under any matplotlib
    return formatter


def read_output(process: RankProcess, name: str, show: Callable[[int, str, bytes], None]) -> None:
    """Show what the rank writes to its stream `name`, as show(rank, name, bytes), until the call's part of it ends."""
    # One call's reader after the other: on a machine that has stood still the last one may not be at its end yet.
    with process.reads[name]:
        stream, end = process.streams[name], process.end_of_output
        data = process.unread.pop(name, b"")
        while not end or end not in data:
            keep = _overlap(data, end)  # the mark may come in two parts, and neither of them is output
            show(process.rank, name, data[: len(data) - keep])
            tail = data[len(data) - keep :]
            if not (data := stream.read(1 << 16)):
                show(process.rank, name, tail)
                stream.close()
                return
            data = tail + data
        printed, _, process.unread[name] = data.partition(end)  # a thread of the rank's may print after it
        show(process.rank, name, printed)


def _overlap(data: bytes, end: bytes) -> int:
    """How many of data's last bytes may be the beginning of `end`."""
    return next((n for n in range(min(len(end) - 1, len(data)), 0, -1) if data.endswith(end[:n])), 0)


class RankOutput:
    """Splits what arrives from every rank into whole lines and writes them with `[rank r] ` in front.

    A carriage return counts as the end of a line, and stays one: progress bars redraw themselves as they should. What a
    rank shows, a picture perhaps, is shown at its place between the lines. Where output must be stable, all is shown in
    rank order when the launch ends.
    """

    def __init__(self, world_size: int) -> None:
        self._rest = {(rank, name): b"" for name in ("stdout", "stderr") for rank in range(world_size)}
        self._held: dict[tuple[int, str], list[str | Bundle]] | None = None
        if stable_output():
            self._held = {key: [] for key in self._rest}

    def add(self, rank: int, name: str, data: bytes) -> None:
        """Take bytes that a rank wrote; whole lines are shown with the rank before them, the rest waits for its end."""
        data = self._rest[rank, name] + data
        end = 0
        lines: list[str] = []
        for match in _END.finditer(data):
            printed, shown = parse_line(data[end : match.end()])
            end = match.end()
            if printed:
                lines.append(self._add_prefix(rank, printed if shown is None else printed + b"\n"))
            if shown is not None:
                lines.append(f"[rank {rank}] shows:\n")
                self._write(rank, name, "".join(lines))
                self._write(rank, name, shown)
                lines = []
        self._rest[rank, name] = data[end:]
        self._write(rank, name, "".join(lines))

    def _add_prefix(self, rank: int, line: bytes) -> str:
        text = line.decode(errors="replace")
        if text.strip("\r\n") == "" and text.endswith("\r"):
            return text  # a progress bar going back to the start of its line
        return f"[rank {rank}] {text}"

    def _write(self, rank: int, name: str, item: str | Bundle) -> None:
        if not item:
            return
        if self._held is not None:
            self._held[rank, name].append(item)
        else:
            _put(name, item)

    def close(self) -> None:
        """Write what is left: unfinished lines, and all of it where output was held back."""
        for (rank, name), rest in self._rest.items():
            if rest:
                self._write(rank, name, f"[rank {rank}] {rest.decode(errors='replace')}\n")
        for (_, name), items in (self._held or {}).items():
            for item in items:
                _put(name, item)


def _put(name: str, item: str | Bundle) -> None:
    """Text goes to the stream called `name`; what is shown to the notebook, or where there is none its text."""
    stream = getattr(sys, name)
    if not isinstance(item, str):
        if context.in_jupyter_kernel():
            from IPython.display import publish_display_data

            stream.flush()
            publish_display_data(*item)
            return
        item = f"{item[0].get('text/plain', '')}\n"
    stream.write(item)
    stream.flush()
