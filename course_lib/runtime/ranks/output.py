"""What ranks print, shown in the notebook with the rank before each line."""

import os
import re
import sys

_LINE = re.compile(rb"[^\r\n]*(?:\r\n|\n|\r)")


def stable_output() -> bool:
    """Whether text must come out the same each time: under nbval and pytest, and while notebooks are made.

    Then ranks' output is shown in rank order when the launch ends, and progress bars stay away.
    """
    return "PYTEST_CURRENT_TEST" in os.environ or "COURSE_LIB_STABLE_OUTPUT" in os.environ


class RankOutput:
    """Splits what arrives from every rank into whole lines and writes them with `[rank r] ` in front.

    A carriage return counts as the end of a line, and stays one: progress bars redraw themselves as they should.
    """

    def __init__(self, world_size: int) -> None:
        self._rest = {(rank, name): b"" for name in ("stdout", "stderr") for rank in range(world_size)}
        self._held: dict[tuple[int, str], list[str]] | None = None
        if stable_output():
            self._held = {key: [] for key in self._rest}

    def add(self, rank: int, name: str, data: bytes) -> None:
        data = self._rest[rank, name] + data
        end = 0
        lines = []
        for match in _LINE.finditer(data):
            end = match.end()
            lines.append(self._prefixed(rank, match.group()))
        self._rest[rank, name] = data[end:]
        self._write(rank, name, "".join(lines))

    def _prefixed(self, rank: int, line: bytes) -> str:
        text = line.decode(errors="replace")
        if text.strip("\r\n") == "" and text.endswith("\r"):
            return text  # a progress bar going back to the start of its line
        return f"[rank {rank}] {text}"

    def _write(self, rank: int, name: str, text: str) -> None:
        if not text:
            return
        if self._held is not None:
            self._held[rank, name].append(text)
        else:
            stream = getattr(sys, name)
            stream.write(text)
            stream.flush()

    def close(self) -> None:
        """Write what is left: unfinished lines, and all of it where output was held back."""
        for (rank, name), rest in self._rest.items():
            if rest:
                self._write(rank, name, f"[rank {rank}] {rest.decode(errors='replace')}\n")
        for (_, name), texts in (self._held or {}).items():
            getattr(sys, name).write("".join(texts))
