"""Draw a MemoryLog: the kinds stacked over the course of the block, a panel for each rank."""

import math
from collections.abc import Collection

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from course_lib.pictures.painter import new_figure, quiet, to_png
from course_lib.pictures.palette import BLUE, GREY, INK, MAGENTA, ORANGE, TEAL
from course_lib.pictures.units import BYTES_IN, human_bytes
from course_lib.runtime.instruments.storage_book import KINDS, Track

COLOURS = dict(zip(KINDS, (BLUE, ORANGE, TEAL, MAGENTA, GREY)))
MAX_PANELS = 8
MAX_BINS = 1500  # more than a panel has pixels


def draw(tracks: tuple[Track, ...], headline: str, detail: str) -> bytes:
    """PNG of the fullest ranks (up to 8), in rank order. Bytes upwards, torch operations to the right."""
    fullest = sorted(tracks, key=Track.peak, reverse=True)[:MAX_PANELS]
    shown = [track for track in tracks if track in fullest]
    columns = min(2, len(shown))
    rows = math.ceil(len(shown) / columns)
    figure = new_figure(1.2 + 2.3 * rows if rows == 1 else 1.0 + 1.9 * rows, headline, detail)
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flatten()
    unit = human_bytes(fullest[0].peak()).split()[1]
    for axes, track in zip(panels, shown):
        panel(axes, track, BYTES_IN[unit], f"rank {track.rank}" if len(tracks) > 1 else "")
    finish(figure, unit, shown)
    return to_png(figure)


def finish(figure: Figure, unit: str, tracks: Collection[Track]) -> None:
    """What all panels have in common: words at the axes, and a legend of the kinds; panels of no track are hidden."""
    for axes in figure.axes[len(tracks):]:
        axes.set_visible(False)
    figure.supylabel(f"held ({unit})", fontsize=9, color=INK)
    figure.supxlabel("torch operations since recording began", fontsize=9, color=INK)
    used = [kind for kind in KINDS if any(track.over_time()[kind].any() for track in tracks)]
    patches = [Patch(color=COLOURS[kind], label=kind.replace("_", " ")) for kind in reversed(used)]
    figure.legend(handles=patches, loc="outside right center", fontsize=8, frameon=False)


def panel(axes: Axes, track: Track, unit: int, title: str) -> None:
    """One rank's panel: bytes by kind over operations, the peak marked."""
    total, by_kind = track.total(), track.over_time()
    starts, changes = highest_of_each_bin(track)
    heights = [by_kind[kind][[*changes, -1]] / unit for kind in KINDS]
    axes.stackplot([*starts, track.num_ops], heights, step="post", colors=COLOURS.values(), lw=0)
    peak = int(total.argmax())
    place = (track.ops()[peak], total[peak] / unit)
    axes.plot(*place, marker="v", markersize=6, color=INK, clip_on=False, zorder=3)
    axes.annotate(f"peak {human_bytes(total[peak])}", place, (0, 6), textcoords="offset points", ha="center",
                  fontsize=8, color=INK, bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5})
    quiet(axes)
    axes.set_title(title, fontsize=9, loc="left", color=INK)
    axes.set_ylim(0, total.max() / unit * 1.3)
    axes.set_xlim(0, max(track.num_ops, 1))
    mark_phases(axes, track)


def mark_phases(axes: Axes, track: Track) -> None:
    """Names the outermost spans along the top, where they are wide enough, and draws their borders."""
    per_letter = 0.0096 if axes.get_subplotspec().get_gridspec().ncols == 1 else 0.012  # of the panel's width
    for phase in track.phases:
        if phase.depth == 0 and phase.end > phase.start:
            for border in (phase.start, phase.end):
                axes.axvline(border, color=INK, lw=0.5, ls=":", zorder=2)
            if (phase.end - phase.start) / max(track.num_ops, 1) > per_letter * len(phase.name):
                axes.text((phase.start + phase.end) / 2, 0.99, phase.name, ha="center", va="top", fontsize=8,
                          transform=axes.get_xaxis_transform(), color=INK)


def highest_of_each_bin(track: Track) -> tuple[np.ndarray, list[int]]:
    """The block in at most MAX_BINS stretches: where each starts, and the change that ends highest in it."""
    ops, total = track.ops(), track.total()
    starts = np.unique(np.linspace(0, track.num_ops, MAX_BINS).astype(int))
    first = np.searchsorted(ops, starts)
    after = np.append(first[1:], len(ops))
    highest = [low + int(total[low:high].argmax()) if high > low else max(low - 1, 0)
               for low, high in zip(first, after)]
    return starts, highest
