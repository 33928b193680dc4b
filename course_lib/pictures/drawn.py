"""Drawn: the base of every value that draws itself in a notebook, as a picture with its words.

JupyterLab gives a PNG no text alternative, so readers get it as HTML, which has one. A notebook that is committed keeps
the PNG beside its sentence: GitHub shows that, and nbval compares it, so the sentence must come out the same each time.
"""

from __future__ import annotations

import base64
import os
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from course_lib.pictures.scene import Scene


def stable_output() -> bool:
    """Set by tools/notebooks.py, by the tests and for the kernels that nbval starts; a reader has neither variable."""
    return "PYTEST_CURRENT_TEST" in os.environ or "COURSE_LIB_STABLE_OUTPUT" in os.environ


def with_alt_text(bundle: dict[str, Any], words: str) -> dict[str, Any]:
    """The MIME bundle with its PNG as an <img> whose alt text is `words`, below a table where it has one."""
    rest = {mime: data for mime, data in bundle.items() if mime != "image/png"}
    png = bundle.get("image/png")
    if png is None:
        return rest
    data = png if isinstance(png, str) else base64.b64encode(png).decode()
    image = f'<img alt="{escape(words)}" src="data:image/png;base64,{data.strip()}" style="max-width: 100%">'
    return {**rest, "text/html": rest.get("text/html", "") + image}


NOT_SEEN = "not seen here: "  # begins the text of a picture whose headline its data contradict


def claim(headline: str, holds: Any = None) -> str:
    """A headline says what there is to see. Where `holds`, asked of the picture's own data, is false, it says so.

    The text output has it too, so that a strict notebook test fails where pictures are recorded.
    """
    return headline if holds is None or bool(holds) else NOT_SEEN + headline


class Drawn:
    """Draws itself as a sentence and, where it has them, as a table and as a picture."""

    def finding(self) -> str:
        """One sentence without times or addresses: a strict notebook test compares it."""
        raise NotImplementedError

    def alternative(self) -> str:
        """What the picture shows, for who cannot see it: a reader's own output, which may hold times, too."""
        return self.finding()

    def html(self) -> str | None:
        """The value as a table, or None."""
        return None

    def scene(self) -> Scene | None:
        """The value as a scene, or None."""
        return None

    def figure(self) -> Figure | None:
        """The value as a figure of matplotlib, by default its scene's; or None."""
        if (scene := self.scene()) is None:
            return None
        from course_lib.pictures.painter import paint  # matplotlib is slow to import

        return paint(scene)

    def png(self) -> bytes | None:
        """The value as a picture, by default its figure; or None."""
        if (figure := self.figure()) is None:
            return None
        from course_lib.pictures.painter import to_png  # matplotlib is slow to import

        return to_png(figure)

    def data_to_keep(self) -> dict[str, str]:
        """What a committed notebook keeps beside the picture, in the output's metadata: data that a page can draw."""
        return {}

    def __repr__(self) -> str:
        return self.finding()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Any:  # IPython takes either form
        drawn = {"text/plain": self.finding(), "text/html": self.html(), "image/png": self.png()}
        bundle = {mime: data for mime, data in drawn.items() if data is not None}
        if not stable_output():
            return with_alt_text(bundle, self.alternative())
        kept = self.data_to_keep()
        return (bundle, kept) if kept else bundle
