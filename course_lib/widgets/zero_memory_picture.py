"""The static picture of ZeroMemory: what a device holds, above what GPUs have."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from course_lib.pictures.figures import new_figure, quiet
from course_lib.pictures.palette import INK, RED
from course_lib.widgets.fits_or_not import gigabytes
from course_lib.widgets.zero_memory import COLOURS, Need

HEIGHT_IN = 3.4
PAPER = {"facecolor": "white", "edgecolor": "none", "pad": 1.2}  # behind words that a line may cross
LIGHT, FREE = "#d9dee3", "#eef1f3"  # of a GPU: what may be used, and the tenth that stays free


def draw(shown: Need) -> Figure:
    """Bytes of one device by kind; a line where they end; a bar as long as its memory for every GPU."""
    figure = new_figure(HEIGHT_IN, f"{shown.question}: {shown.finding}", f"{shown.recipe}: {shown.detail}")
    axes, needed, scale = figure.subplots(), shown.needed, shown.scale / 1e9
    first = 2 if needed.host else 1  # the row of the smallest GPU
    left = 0.0
    for kind, value in zip(COLOURS, needed.by_kind().values()):
        axes.barh(0, value / 1e9, left=left, height=0.7, color=COLOURS[kind], edgecolor="white", lw=0.5)
        left += value / 1e9
    cut = left > scale
    axes.annotate(gigabytes(needed.total) + (" »" if cut else ""), (min(left, scale), 0), (-4 if cut else 4, 0),
                  va="center", ha="right" if cut else "left", textcoords="offset points", fontsize=8.5,
                  fontweight="bold", color=INK, bbox=PAPER)
    if needed.host:
        axes.barh(1, needed.host / 1e9, height=0.45, color="white", edgecolor=COLOURS["on the host"], hatch="///")
        beyond = needed.host / 1e9 > scale
        axes.annotate(gigabytes(needed.host) + (" »" if beyond else ""), (min(needed.host / 1e9, scale), 1),
                      (-4 if beyond else 4, 0), va="center", ha="right" if beyond else "left",
                      textcoords="offset points", fontsize=8.5, color=INK,
                      bbox=PAPER)
    for row, room in enumerate(shown.rooms, start=first):
        axes.barh(row, room.there / 1e9, height=0.5, color=FREE)
        axes.barh(row, 0.9 * room.there / 1e9, height=0.5, color=LIGHT)
        axes.annotate(room.verdict, (room.there / 1e9, row), (5, 0), va="center", textcoords="offset points",
                      fontsize=8.5, color=INK if room.fits else RED, fontweight="bold" if room.fits else "normal",
                      bbox=PAPER)
    if not cut:
        axes.plot([left, left], [0, len(shown.rooms) + first - 0.5], color=RED, lw=1.4, zorder=1.5)
    axes.set_xlim(0, scale)
    names = ["each device holds", "its host holds"][:first]
    axes.set_yticks(range(len(shown.rooms) + first), [*names, *(room.label for room in shown.rooms)])
    axes.invert_yaxis()
    quiet(axes)
    axes.set_xlabel("GB; the pale end of a GPU stays free", fontsize=9, color=INK)
    key = [Patch(color=colour, label=kind) for kind, colour in COLOURS.items() if kind != "on the host"]
    axes.legend(handles=key, fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure
