"""One kind of figure for every picture, without pyplot, whose state belongs to the reader."""

import io

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course_lib.pictures.palette import INK

WIDTH_IN, DPI, TITLE_IN = 9.0, 110, 0.55  # about the width of a notebook cell's output


def new_figure(height_in: float, headline: str, detail: str) -> Figure:
    """A white figure whose headline is what there is to see in it; `detail` stands below, smaller."""
    figure = Figure(figsize=(WIDTH_IN, height_in), dpi=DPI, facecolor="white", layout="constrained")
    top = 1 - TITLE_IN / height_in
    figure.get_layout_engine().set(rect=(0, 0, 1, top))
    headline = headline[0].upper() + headline[1:]
    figure.text(0.01, 1 - 0.08 / height_in, headline, va="top", fontsize=11, fontweight="bold", color=INK)
    figure.text(0.01, 1 - 0.31 / height_in, detail, va="top", fontsize=9, color=INK)
    return figure


def quiet(axes: Axes) -> None:
    """Leave of the frame only what carries numbers."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8, colors=INK)


def words_of(figure: Figure) -> str:
    """What a figure says of itself in its titles and beside its axes, for who cannot see it."""
    texts = [figure.get_suptitle()]
    for axes in figure.axes:
        texts += [axes.get_title(loc=place) for place in ("left", "center", "right")]
        texts.append(" over ".join(filter(None, (axes.get_ylabel(), axes.get_xlabel()))))
    return f"a figure: {'; '.join(filter(None, texts)) or 'it has no title'}"


def to_png(figure: Figure) -> bytes:
    """The figure as PNG, the same bytes each time."""
    buffer = io.BytesIO()
    # No "Software" entry: the same picture gives the same bytes under every matplotlib version.
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()
