"""Draw what ranks recorded: a MemoryLog as kinds stacked over time, a Timeline as a band of two lanes for each rank."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from course_lib.pictures.painter import WIDTH_IN, new_figure, quiet, to_png
from course_lib.pictures.palette import BLUE, CYAN, GREY, INK, MAGENTA, ORANGE, RED, TEAL, ink_on
from course_lib.pictures.units import BYTES_IN, human_bytes
from course_lib.runtime.instruments.storage_book import KINDS, Track
from course_lib.runtime.instruments.timeline_events import (
    Intervals,
    TimelineEvent,
    intersection,
    longest_outside,
    side_by_side,
    transfers,
    union,
)

KIND_COLOURS = dict(zip(KINDS, (BLUE, ORANGE, TEAL, MAGENTA, GREY)))
MAX_PANELS = 8
MAX_BINS = 1500  # more than a panel has pixels
SPAN_COLOURS = (BLUE, ORANGE, TEAL, CYAN, RED)  # by first appearance; further names share grey
OWN_COLOURS = {"experts": ORANGE}  # the same in pictures with and without what comes before them
BLOCKED = "#F3C4D8"  # the colour of communication, paler
MAX_RANKS = 16
LANE = 0.44  # height of a lane, in bands; a band is one rank
INSET = 0.22  # how much thinner a span is than the one around it, in lanes
LETTER_IN = 0.07  # width of a letter in a box


def draw_memory(tracks: tuple[Track, ...], headline: str, detail: str) -> bytes:
    """PNG of the fullest ranks (up to 8), in rank order. Bytes upwards, torch operations to the right."""
    fullest = sorted(tracks, key=Track.peak, reverse=True)[:MAX_PANELS]
    shown = [track for track in tracks if track in fullest]
    columns = min(2, len(shown))
    rows = math.ceil(len(shown) / columns)
    figure = new_figure(1.2 + 2.3 * rows if rows == 1 else 1.0 + 1.9 * rows, headline, detail)
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flatten()
    unit = human_bytes(fullest[0].peak()).split()[1]
    for axes, track in zip(panels, shown):
        draw_panel(axes, track, BYTES_IN[unit], f"rank {track.rank}" if len(tracks) > 1 else "")
    finish_panels(figure, unit, shown)
    return to_png(figure)


def finish_panels(figure: Figure, unit: str, tracks: Collection[Track]) -> None:
    """What all panels have in common: words at the axes, and a legend of the kinds; panels of no track are hidden."""
    for axes in figure.axes[len(tracks):]:
        axes.set_visible(False)
    figure.supylabel(f"held ({unit})", fontsize=9, color=INK)
    figure.supxlabel("torch operations since recording began", fontsize=9, color=INK)
    used = [kind for kind in KINDS if any(track.over_time()[kind].any() for track in tracks)]
    patches = [Patch(color=KIND_COLOURS[kind], label=kind.replace("_", " ")) for kind in reversed(used)]
    figure.legend(handles=patches, loc="outside right center", fontsize=8, frameon=False)


def draw_panel(axes: Axes, track: Track, unit: int, title: str) -> None:
    """One rank's panel: bytes by kind over operations, the peak marked."""
    total, by_kind = track.total(), track.over_time()
    starts, changes = highest_of_each_bin(track)
    heights = [by_kind[kind][[*changes, -1]] / unit for kind in KINDS]
    axes.stackplot([*starts, track.num_ops], heights, step="post", colors=KIND_COLOURS.values(), lw=0)
    peak = int(total.argmax())
    top = (track.ops()[peak], total[peak] / unit)
    axes.plot(*top, marker="v", markersize=6, color=INK, clip_on=False, zorder=3)
    axes.annotate(f"peak {human_bytes(total[peak])}", top, (0, 6), textcoords="offset points", ha="center",
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


@dataclass(frozen=True)
class EventBox:
    """Where an event is drawn: seconds from the first event, and bands from the top."""

    event: TimelineEvent
    start_s: float
    top: float
    height: float
    colour: str
    text: bool = True  # whether it may be written on: not where inner spans cover it


def draw_timeline(ranks: Sequence[int], events: list[TimelineEvent], waits: list[TimelineEvent], duration_s: float,
                  headline: str, detail: str, below: str = "") -> bytes:
    """PNG of the first 16 ranks. Time to the right, from the first event on; `below` stands beside the axis' name."""
    ranks = ranks[:MAX_RANKS]
    names = list(dict.fromkeys(event.name for event in events if event.lane == "compute"))
    colours = span_colours(names)
    zero = min(event.start_s for event in events)
    figure = new_figure(1.5 + 0.72 * len(ranks), headline, detail)
    axes = figure.subplots()
    boxes: list[EventBox] = []
    wait_boxes: list[EventBox] = []  # hatched: for others
    blocked_boxes: list[EventBox] = []  # on top of them, dotted: while bytes of the rank's own move
    moving = transfers(events)
    for band, rank in enumerate(ranks):
        mine = [event for event in events if event.rank == rank]
        boxes += compute_lane(mine, zero, band, colours) + communication_lane(mine, zero, band)
        own = [wait for wait in waits if wait.rank == rank]
        wait_boxes += [EventBox(wait, wait.start_s - zero, band, LANE, "white") for wait in own]
        blocked = intersection(union((wait.start_s, wait.end_s) for wait in own), moving.get(rank, []))
        blocked_boxes += [EventBox(replace(own[0], start_s=start, end_s=end), start - zero, band, LANE, BLOCKED)
                          for start, end in blocked]
    prepare_bands(axes, ranks, duration_s, below)
    paint_boxes(axes, boxes, edgecolor="white", lw=0.4)
    paint_boxes(axes, wait_boxes, edgecolor="#777777", hatch="//////", lw=0)
    paint_boxes(axes, blocked_boxes, edgecolor="white", lw=0)
    hatched = {rank: union((box.start_s, box.start_s + box.event.duration_s)
                           for box in wait_boxes if box.event.rank == rank) for rank in ranks}
    write_texts(axes, boxes, hatched, duration_s)
    patches = legend(colours, wait_boxes, blocked_boxes, boxes)
    figure.legend(handles=patches, loc="outside right center", fontsize=8, frameon=False)
    return to_png(figure)


def span_colours(names: Sequence[str]) -> dict[str, str]:
    """A colour for each name of a span, in the order of their first appearance."""
    own = {name: OWN_COLOURS[name] for name in names if name in OWN_COLOURS}
    others = iter([colour for colour in SPAN_COLOURS if colour not in own.values()])
    return {name: own.get(name) or next(others, GREY) for name in names}


def compute_lane(events: list[TimelineEvent], zero: float, band: int, colours: dict[str, str]) -> list[EventBox]:
    """Spans, inner ones on top of and shorter than the ones around them."""
    spans = sorted((event for event in events if event.lane == "compute"), key=lambda event: event.start_s)
    latest: dict[int, TimelineEvent] = {}  # depth -> the span that began last, around what is one deeper
    covered = set()
    for event in spans:
        latest[event.depth] = event
        covered.add(id(latest.get(event.depth - 1)))
    boxes = []
    for event in sorted(spans, key=lambda event: event.depth):
        inset = LANE * min(INSET * event.depth, 0.7)
        boxes.append(EventBox(event, event.start_s - zero, band + inset, LANE - inset, colours[event.name],
                         text=id(event) not in covered))
    return boxes


def communication_lane(events: list[TimelineEvent], zero: float, band: int) -> list[EventBox]:
    """Calls, those in flight at the same time below each other."""
    calls = [event for event in events if event.lane == "communication"]
    rows = side_by_side([(call.start_s, call.end_s) for call in calls])
    height = LANE / (max(rows, default=0) + 1)
    return [EventBox(call, call.start_s - zero, band + LANE + row * height, height, MAGENTA)
            for call, row in zip(calls, rows)]


def prepare_bands(axes: Axes, ranks: Sequence[int], duration_s: float, below: str) -> None:
    """Axes for a band of each rank, time in ms below a second."""
    axes.set_xlim(0, duration_s)
    axes.set_ylim(len(ranks), -0.06)
    unit, scale = ("ms", 1e3) if duration_s < 1 else ("s", 1)
    axes.xaxis.set_major_formatter(lambda seconds, _: f"{seconds * scale:g}")
    axes.set_xlabel("   ".join(filter(None, [f"time since the first event ({unit})", below])), fontsize=9, color=INK)
    axes.set_yticks([band + LANE for band in range(len(ranks))], [f"rank {rank}" for rank in ranks])
    quiet(axes)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def paint_boxes(axes: Axes, boxes: list[EventBox], **style: Any) -> None:
    """A rectangle for each box, in its colour."""
    rectangles = [Rectangle((box.start_s, box.top), box.event.duration_s, box.height) for box in boxes]
    axes.add_collection(PatchCollection(rectangles, facecolors=[box.colour for box in boxes], **style))


def write_texts(axes: Axes, boxes: list[EventBox], hatched: dict[int, Intervals], duration_s: float) -> None:
    """Into each box what fits: name and labels, the name, or nothing. Nothing is written over a wait."""
    letters_a_second = (WIDTH_IN - 2.0) / duration_s / LETTER_IN
    for box in boxes:
        taken = hatched[box.event.rank] if box.event.lane == "compute" else []
        start_s, end_s = longest_outside(box.start_s, box.start_s + box.event.duration_s, taken)
        room = (end_s - start_s) * letters_a_second
        text = next((text for text in texts(box.event) if len(text) <= room), "")
        if text and box.text and box.height >= LANE / 3:
            size = 8 if box.height > LANE / 2 else 6
            axes.text((start_s + end_s) / 2, box.top + box.height / 2, text, fontsize=size,
                      ha="center", va="center_baseline", color=ink_on(box.colour))


def texts(event: TimelineEvent) -> tuple[str, str]:
    """The long and the short text of a box."""
    if event.lane == "compute":
        return " ".join([event.name, *map(str, event.labels.values())]), event.name
    peer = f" {event.labels['peer']}" if "peer" in event.labels else ""
    return f"{event.name}{peer}, {human_bytes(event.labels['bytes'])}", event.name


def legend(colours: dict[str, str], waits: list[EventBox], blocked: list[EventBox],
           boxes: list[EventBox]) -> list[Patch]:
    """What the colours mean; spans with a grey name are counted only."""
    few = [Patch(color=colour, label=name) for name, colour in colours.items() if colour != GREY]
    if len(few) < len(colours):
        few.append(Patch(color=GREY, label=f"{len(colours) - len(few)} more"))
    if waits:
        few.append(Patch(facecolor="white", edgecolor="#777777", hatch="//////", label="waits for others"))
    if blocked:
        few.append(Patch(color=BLOCKED, label="blocked, bytes move"))
    if any(box.colour == MAGENTA for box in boxes):
        few.append(Patch(color=MAGENTA, label="communication"))
    return few
