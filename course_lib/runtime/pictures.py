"""How the recorders draw: one palette, one kind of figure, no pyplot (its state belongs to the reader)."""

import io

from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Paul Tol's vibrant scheme, safe for colour-blind readers: https://personal.sron.nl/~pault/
BLUE, ORANGE, TEAL, RED = "#0077BB", "#EE7733", "#009988", "#CC3311"
MAGENTA, CYAN, GREY = "#EE3377", "#33BBEE", "#BBBBBB"
# Two more, of his bright and high-contrast schemes, where eight ranks need a colour each.
PURPLE, YELLOW, DARK_GREY = "#AA3377", "#DDAA33", "#777777"
RANK_COLOURS = (BLUE, ORANGE, TEAL, RED, PURPLE, YELLOW, CYAN, DARK_GREY)
INK = "#333333"
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


def ink_on(colour: str) -> str:
    """The colour of text on `colour`."""
    return INK if colour in (GREY, CYAN, ORANGE, YELLOW) else "white"


def rank_colour(rank: int) -> str:
    """The colour of `rank` in every picture; from the ninth on they repeat."""
    return RANK_COLOURS[rank % len(RANK_COLOURS)]


def quiet(axes: Axes) -> None:
    """Leave of the frame only what carries numbers."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8, colors=INK)


def to_png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()
