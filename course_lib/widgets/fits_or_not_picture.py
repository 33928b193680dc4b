"""The static picture of FitsOrNot: a bar for each ZeRO stage, and the line that it has to stay left of."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from course_lib.pictures.figures import new_figure, quiet
from course_lib.pictures.palette import INK, RED
from course_lib.widgets.fits_or_not import COLOURS, STAGE_NAMES, Outlook, gigabytes

HEIGHT_IN = 3.2


def draw(shown: Outlook) -> Figure:
    """Bytes of each device, by kind; a bar longer than the picture ends at its edge, with its number."""
    figure = new_figure(HEIGHT_IN, f"{shown.model} {shown.finding}", f"{shown.question}: {shown.detail}")
    axes = figure.subplots()
    for row, needed in enumerate(shown.by_stage):
        left = 0.0
        for kind, value in zip(COLOURS, needed.by_kind().values()):
            axes.barh(row, value / 1e9, left=left / 1e9, height=0.62, color=COLOURS[kind], edgecolor="white", lw=0.5)
            left += value
        end = min(left, shown.scale) / 1e9
        cut = left > shown.scale
        axes.annotate(gigabytes(left) + (" »" if cut else ""), (end, row), (-4 if cut else 4, 0), va="center",
                      ha="right" if cut else "left", textcoords="offset points", fontsize=8.5, fontweight="bold",
                      color=INK, bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.2, "alpha": 0.85})
    axes.axvline(shown.there / 1e9, color=RED, lw=1.6)
    axes.annotate(shown.limit_text, (shown.there / 1e9, 1), (3, 3), fontsize=8.5, color=RED,
                  xycoords=("data", "axes fraction"), textcoords="offset points")
    axes.set_xlim(0, shown.scale / 1e9)
    axes.set_yticks(range(len(STAGE_NAMES)), STAGE_NAMES)
    axes.invert_yaxis()
    quiet(axes)
    axes.set_xlabel("GB on each device", fontsize=9, color=INK)
    key = [Patch(color=colour, label=kind) for kind, colour in COLOURS.items()]
    axes.legend(handles=key, fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure
