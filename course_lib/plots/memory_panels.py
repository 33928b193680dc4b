"""Several recordings of memory in one picture, on one scale, each with the line that a formula predicts.

    MemoryPanels("A fourth of it", {"whole": alone.memory, "sharded": sharded.memory}, predicted={"sharded": 4.0e6})
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from matplotlib.figure import Figure

from course_lib.pictures.drawn import Drawn, claim
from course_lib.pictures.figures import new_figure
from course_lib.pictures.palette import INK
from course_lib.pictures.units import BYTES_IN, human_bytes
from course_lib.runtime import MemoryLog
from course_lib.runtime.instruments.memory_picture import finish, panel
from course_lib.runtime.instruments.memory_track import Track


@dataclass(frozen=True, repr=False)
class MemoryPanels(Drawn):
    """`logs` by name, of each the rank with the highest peak. `predicted`: bytes, by the same names; dashed.

    `holds`: whether these very recordings say what the headline says; where not, picture and text say so.
    ValueError without logs, for a log of nothing, or a prediction of none of them.
    """

    headline: str
    logs: Mapping[str, MemoryLog]
    predicted: Mapping[str, float] = field(default_factory=dict)
    holds: bool | None = None

    def __post_init__(self) -> None:
        empty = [name for name, log in self.logs.items() if not log.peak]
        if not self.logs or empty:
            raise ValueError(f"{', '.join(empty) or 'no log'}: expected recordings of memory, by name")
        if unknown := sorted(self.predicted.keys() - self.logs.keys()):
            raise ValueError(f"predictions of {', '.join(unknown)}: expected names of logs, {', '.join(self.logs)}")

    def finding(self) -> str:
        return f"MemoryPanels: {claim(self.headline, self.holds)} ({', '.join(self.logs)})"

    def fullest_tracks(self) -> dict[str, Track]:
        """By name, of each log the rank with the highest peak."""
        return {name: max(log.tracks, key=Track.peak) for name, log in self.logs.items()}

    def figure(self) -> Figure:
        columns = min(2, len(self.logs))
        rows = math.ceil(len(self.logs) / columns)
        figure = new_figure(1.2 + 1.9 * rows, claim(self.headline, self.holds), "")
        panels = figure.subplots(rows, columns, sharey=True, squeeze=False).flatten()
        tracks = self.fullest_tracks()
        highest = max(track.peak() for track in tracks.values())
        unit = human_bytes(highest).split()[1]
        for axes, (name, track) in zip(panels, tracks.items()):
            panel(axes, track, BYTES_IN[unit], name)
            axes.set_ylim(0, 1.3 * highest / BYTES_IN[unit])
            axes.locator_params(axis="x", nbins=5)  # numbers of five digits run together otherwise
            if name in self.predicted:
                axes.axhline(self.predicted[name] / BYTES_IN[unit], color=INK, lw=1.3, ls="--", zorder=3)
                # Above the panel: beside the line, words would lie on bars or on those of the peak.
                said = f"dashed: formula {human_bytes(self.predicted[name])}"
                axes.set_title(said, fontsize=8, loc="right", color=INK)
        finish(figure, unit, tracks.values())
        return figure
