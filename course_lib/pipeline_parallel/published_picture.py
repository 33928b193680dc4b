"""Draw published bubble rates beside the predicted ones: a panel for each model."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from course_lib.pictures.figures import new_figure, quiet, to_png
from course_lib.pictures.palette import BLUE, INK, ORANGE, RED, TEAL
from course_lib.pipeline_parallel.published import PublishedRate, RelativeCosts

COLOURS = {"1F1B": RED, "1F1B-I": ORANGE, "ZB-H1": BLUE, "ZB-H2": TEAL}


def draw(rows: Sequence[PublishedRate], costs: Mapping[str, RelativeCosts], worst: PublishedRate) -> bytes:
    """PNG: for each model of `costs` its rows, over the number of micro-batches."""
    models = list(costs)
    points = 100 * abs(worst.predicted - worst.published)
    figure = new_figure(3.3, f"predicted bubble rates are at most {points:.1f} percentage points off",
                        "lines: simulated; dots: published; hollow: the m on which W and the message time were fitted")
    panels = figure.subplots(1, len(models), sharey=True, squeeze=False)[0]
    for axes, model in zip(panels, models):
        draw_model(axes, [row for row in rows if row.model == model])
        title = f"{model}: W = {costs[model].backward_weight:.2f} F, p2p = {costs[model].p2p:.2f} F"
        axes.set_title(title, fontsize=8.5, color=INK)
    panels[0].set_ylim(0, 1.05 * max(row.published for row in rows))
    panels[0].set_ylabel("bubble rate", fontsize=9, color=INK)
    panels[0].yaxis.set_major_formatter(lambda rate, _: f"{rate:.0%}")
    lines = [Line2D([], [], color=colour, marker="o", label=name) for name, colour in COLOURS.items()]
    figure.legend(handles=lines, ncols=len(lines), loc="outside lower left", fontsize=8, frameon=False)
    return to_png(figure)


def draw_model(axes: Axes, rows: list[PublishedRate]) -> None:
    """One model's panel: predicted rates as lines, published ones as dots, hollow where they were fitted."""
    for name, colour in COLOURS.items():
        mine = [row for row in rows if row.schedule == name]
        axes.plot([row.m for row in mine], [row.predicted for row in mine], color=colour, lw=1.3)
        axes.scatter([row.m for row in mine], [row.published for row in mine], s=26, edgecolors=colour, zorder=3,
                     facecolors=["white" if row.fitted else colour for row in mine])
    axes.set_xticks(sorted({row.m for row in rows}))
    axes.set_xlabel("micro-batches", fontsize=9, color=INK)
    quiet(axes)
