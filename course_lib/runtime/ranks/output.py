"""What ranks print, read from their pipes and shown in the notebook with the rank before each line."""

import re
import sys
from collections.abc import Callable

from course_lib.pictures.drawn import stable_output
from course_lib.runtime import context
from course_lib.runtime.ranks.processes import RankProcess
from course_lib.runtime.ranks.showing import Bundle, parse_line

_END = re.compile(rb"\r\n|\n|\r")


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
                lines.append(self._with_prefix(rank, printed if shown is None else printed + b"\n"))
            if shown is not None:
                lines.append(f"[rank {rank}] shows:\n")
                self._write(rank, name, "".join(lines))
                self._write(rank, name, shown)
                lines = []
        self._rest[rank, name] = data[end:]
        self._write(rank, name, "".join(lines))

    def _with_prefix(self, rank: int, line: bytes) -> str:
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
