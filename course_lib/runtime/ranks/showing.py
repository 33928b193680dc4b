"""`display(...)` and `plt.show()` in a rank: what is shown travels down its own stdout, in order with its prints.

In a notebook `display` is a built-in function, and `plt.show()` asks matplotlib's backend; a rank gets both from here.
A thing that is shown is one line: MARK, and the base64 of its MIME bundle, which RankOutput shows under the cell.
"""

import base64
import builtins
import json
import os
import sys
from functools import cache
from typing import Any

from course_lib.pictures.drawn import stable_output, with_alt_text

MARK = b"\0course_lib shows "
INLINE = ("inline", "module://matplotlib_inline.backend_inline", "module://ipykernel.pylab.backend_inline")
BACKEND = "module://course_lib.runtime.ranks.pyplot_backend"

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
            data = _with_words(value, data)
        send(data, metadata)


def show_open_figures() -> None:
    """plt.show() for who has not called it, where it shows under the cell."""
    if os.environ.get("MPLBACKEND") == BACKEND and (pyplot := sys.modules.get("matplotlib.pyplot")) is not None:
        pyplot.show()


def close_figure(figure: Any) -> None:
    """Tell pyplot that `figure` was shown; nothing where it is not one of pyplot's."""
    if (pyplot := sys.modules.get("matplotlib.pyplot")) is not None:
        pyplot.close(figure)


def _with_words(value: Any, data: dict[str, Any]) -> dict[str, Any]:
    """A figure's picture with what the figure says of itself; anything else has words of its own, or none."""
    from matplotlib.figure import Figure

    from course_lib.pictures.painter import words_of

    return with_alt_text(data, words_of(value)) if isinstance(value, Figure) else data


def send(data: dict[str, Any], metadata: dict[str, Any]) -> None:
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
