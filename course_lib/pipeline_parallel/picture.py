"""Draw schedules with their times: a lane for each rank, forward blue, backward orange, weight gradients teal.

`schedule_picture` draws them below each other, `measured_under_plan` a measured step below its plan, on one time axis.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import isclose
from typing import Any

from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from course_lib.pictures.drawn import Drawn, claim
from course_lib.pictures.painter import WIDTH_IN, new_figure, quiet, to_png
from course_lib.pictures.palette import BLUE, INK, LIGHTEST, ORANGE, TEAL, ink_on
from course_lib.pipeline_parallel.schedules import Action, Schedule
from course_lib.pipeline_parallel.simulate import Simulation, Time, TimedAction, simulate, write_count

COLOURS = {"F": BLUE, "B": ORANGE, "I": ORANGE, "W": TEAL}
NAMES = {"F": "forward (F)", "B": "whole backward (B)", "I": "backward, input (I)", "W": "backward, weights (W)"}
PALE = "#FBEFEC"  # behind the stripes of idle time
LANE_IN, TITLE_IN, DIGIT_IN = 0.3, 0.3, 0.075


@dataclass(frozen=True)
class Panel:
    """One schedule in a picture."""

    title: str
    simulation: Simulation


@dataclass(frozen=True, repr=False)
class SchedulePicture(Drawn):
    """What picture_of and measured_under_plan return; a cell that ends in it shows it."""

    panels: tuple[Panel, ...]
    headline: str
    detail: str
    sentence: str
    unit: str
    holds: bool | None = None  # what these very times say of a headline that somebody has given

    def shows(self, headline: str, holds: bool) -> "SchedulePicture":
        """The same under a headline that says what there is to see. `holds`: whether the schedules say so."""
        return replace(self, headline=headline, holds=bool(holds))

    def finding(self) -> str:
        if self.holds is None:
            return self.sentence
        return f"Schedules: {claim(self.headline, self.holds)} ({self.sentence})"

    def png(self) -> bytes:
        return to_png(self.figure())

    def figure(self) -> Figure:
        """The matplotlib figure: a panel for each schedule, all on one scale of time."""
        lanes = [panel.simulation.schedule.num_ranks for panel in self.panels]
        heights = [TITLE_IN + LANE_IN * num for num in lanes]
        figure = new_figure(sum(heights) + 1.5, claim(self.headline, self.holds), self.detail)
        all_axes = figure.subplots(len(self.panels), 1, sharex=True, height_ratios=heights, squeeze=False)[:, 0]
        end = max(panel.simulation.makespan for panel in self.panels) or 1
        for axes, panel in zip(all_axes, self.panels):
            draw_lanes(axes, panel.simulation, end)
            axes.set_title(panel.title, loc="left", fontsize=9, color=INK)
        all_axes[-1].set_xlabel(self.unit, fontsize=9, color=INK)
        figure.legend(handles=legend([panel.simulation for panel in self.panels]), ncols=6, loc="outside lower left",
                      fontsize=8, frameon=False)
        return figure


def schedule_picture(*schedules: Schedule | Simulation, **costs: Any) -> SchedulePicture:
    """The schedules below each other on one time axis. Those not simulated yet are, with `costs` (see simulate).

    Without `costs` a rank's forward pass of a micro-batch takes 1, so each of its v chunks takes 1/v. ValueError where
    there is no schedule.
    """
    if not schedules:
        raise ValueError("schedule_picture(): expected at least one Schedule or Simulation")
    simulations = [each if isinstance(each, Simulation) else simulate(each, **(costs or costs_of_a_whole_rank(each)))
                   for each in schedules]
    unit = [] if costs else ["time (1: a rank's forward pass of a micro-batch)"]
    return picture_of(simulations, *unit)


def costs_of_a_whole_rank(schedule: Schedule) -> dict[str, Time]:
    """Costs in which all chunks of a rank together take 1 for each of a micro-batch's three computations."""
    each = Fraction(1, len(schedule.stages[0]))
    return {"forward": each, "backward_input": each, "backward_weight": each}


def picture_of(simulations: Sequence[Simulation], unit: str = "time, in the unit of the costs") -> SchedulePicture:
    """Simulated schedules below each other on one time axis."""
    panels = tuple(Panel(title_of(simulation), simulation) for simulation in simulations)
    headline = "idle: " + ", ".join(f"{each.schedule.name} {each.bubble_fraction:.0%}" for each in simulations)
    detail = "numbers are micro-batches; striped: a rank waits; right: the most micro-batches it has in flight"
    return SchedulePicture(panels, headline, detail, "; ".join(map(repr, simulations)), unit)


def measured_under_plan(plan: Simulation, measured: Simulation) -> SchedulePicture:
    """A step that was planned, and below it the same step as it was measured; both in seconds.

    ValueError where they are not of the same schedule.
    """
    if plan.schedule != measured.schedule:
        raise ValueError(f"the plan is of {plan.schedule.name!r}, {plan.schedule.num_ranks} ranks and "
                         f"{plan.schedule.num_microbatches} micro-batches, what was measured of "
                         f"{measured.schedule.name!r}, {measured.schedule.num_ranks} ranks and "
                         f"{measured.schedule.num_microbatches}: expected the same schedule")
    panels = tuple(Panel(f"{name}: {float(step.makespan):.3g} s, {step.bubble_fraction:.1%} idle", step)
                   for name, step in (("plan", plan), ("measured", measured)))
    headline = f"planned to be idle {plan.bubble_fraction:.0%} of the time, measured {measured.bubble_fraction:.0%}"
    detail = f"{plan.schedule.name}; numbers are micro-batches; striped: a rank waits"
    return SchedulePicture(panels, headline, detail, f"{plan!r}; below it the step as it was measured",
                           "time since the first action (s)")


def title_of(simulation: Simulation) -> str:
    """Name and idle shares of one panel."""
    title = (f"{simulation.schedule.name}: {simulation.bubble_fraction:.1%} idle, "
             f"{simulation.bubble_of_ideal:.1%} of the ideal time")
    even = isclose(min(simulation.busy), max(simulation.busy))  # otherwise the share is the busiest rank's alone
    if even and simulation.bubble_of_span < simulation.bubble_fraction:
        title += f"; {simulation.bubble_of_span:.1%} between a rank's own start and end"
    return title


def colour_of(action: Action, num_chunks: int) -> str:
    """The colour of an action's kind, lighter for later chunks of a rank."""
    white = LIGHTEST * action.chunk / (num_chunks - 1) if num_chunks > 1 else 0.0
    return to_hex([part + (1 - part) * white for part in to_rgb(COLOURS[action.kind])])


def draw_lanes(axes: Axes, simulation: Simulation, end: Time) -> None:
    """Time to the right up to `end`, ranks downwards."""
    schedule, num = simulation.schedule, simulation.schedule.num_ranks
    axes.set(xlim=(0, float(end)), ylim=(num, 0))
    axes.set_yticks([rank + 0.5 for rank in range(num)], [f"rank {rank}" for rank in range(num)])
    quiet(axes)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    # One rectangle behind each lane: what no action covers stays visible as idle time.
    idle = [Rectangle((0, rank + 0.06), float(simulation.makespan), 0.88) for rank in range(num)]
    axes.add_collection(PatchCollection(idle, facecolor=PALE, edgecolor="#E3A598", hatch="////", lw=0))
    paint(axes, simulation.timeline, schedule)
    numbers(axes, simulation.timeline, schedule, (WIDTH_IN - 2.2) / float(end))
    for rank, peak in enumerate(simulation.peak_activations):
        axes.text(1.01, rank + 0.5, f"{write_count(peak)} in flight", transform=axes.get_yaxis_transform(), va="center",
                  fontsize=8, color=INK)


def paint(axes: Axes, boxes: Sequence[TimedAction], schedule: Schedule) -> None:
    """A rectangle for each box, in the colour of its kind and chunk."""
    shapes, colours = [], []
    for box in boxes:
        num_chunks, width = len(schedule.stages[box.rank]), float(box.duration)
        shapes.append(Rectangle((float(box.start), box.rank + 0.06), width, 0.88))
        colours.append(colour_of(box.action, num_chunks))
    axes.add_collection(PatchCollection(shapes, facecolors=colours, edgecolor="white", lw=0.6, zorder=2))
    # A whole backward pass also makes the weight gradients: a strip in their colour.
    whole = [box for box in boxes if box.action.kind == "B"]
    strips = [Rectangle((float(box.start), box.rank + 0.78), float(box.duration), 0.16) for box in whole]
    teal = [colour_of(box.action._replace(kind="W"), len(schedule.stages[box.rank])) for box in whole]
    axes.add_collection(PatchCollection(strips, facecolors=teal, edgecolor="white", lw=0.6, zorder=3))


def numbers(axes: Axes, boxes: Sequence[TimedAction], schedule: Schedule, inches_a_time: float) -> None:
    """Write the micro-batch into each box that has room for it."""
    for box in boxes:
        text = str(box.action.microbatch)
        if float(box.duration) * inches_a_time > DIGIT_IN * len(text) + 0.02:
            light = box.action.chunk > 0
            axes.text(float(box.start + box.end) / 2, box.rank + (0.44 if box.action.kind == "B" else 0.5), text,
                      ha="center", va="center_baseline", fontsize=7.5, zorder=5,
                      color=INK if light else ink_on(COLOURS[box.action.kind]))


def legend(simulations: Sequence[Simulation]) -> list[Patch]:
    """What the colours mean, as far as they occur."""
    kinds = {box.action.kind for simulation in simulations for box in simulation.timeline}
    edges = {"B": TEAL}  # as the strip in its boxes
    patches = [Patch(facecolor=COLOURS[kind], edgecolor=edges.get(kind, COLOURS[kind]), lw=1.4, label=name)
               for kind, name in NAMES.items() if kind in kinds]
    patches.append(Patch(facecolor=PALE, edgecolor="#E3A598", hatch="////", label="idle"))
    if any(len(chunks) > 1 for simulation in simulations for chunks in simulation.schedule.stages):
        patches.append(Patch(color="#80BBDD", label="lighter: later chunk"))
    return patches
