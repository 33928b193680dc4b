"""What a training run reports: a value that draws itself in a notebook, and saves its picture from a script."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from course_lib.hybrid_parallel.metrics import StepMetrics
from course_lib.pictures.drawn import Drawn
from course_lib.pictures.palette import BLUE, INK, ORANGE, TEAL
from course_lib.pictures.units import human_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, repr=False)
class TrainingReport(Drawn):
    """The steps of a run of `world_size` ranks under `layout`, in order."""

    layout: str
    world_size: int
    steps: tuple[StepMetrics, ...]

    @property
    def losses(self) -> list[float]:
        """The loss of each step, in nats per token."""
        return [step.loss for step in self.steps]

    @property
    def bytes_by_axis(self) -> dict[str, int]:
        """What all ranks sent in a step. Empty for a run of one step, in which nothing was counted."""
        return next((step.bytes_by_axis for step in self.steps if step.bytes_by_axis is not None), {})

    @property
    def memory_by_kind(self) -> dict[str, int]:
        """The most that any rank held of each kind."""
        return next((step.memory_by_kind for step in self.steps if step.memory_by_kind is not None), {})

    @property
    def step_s(self) -> float:
        """The median of the steps in which nothing was counted, without the first one."""
        # Counting slows a step down, and the first step sets up what later ones find.
        plain = [step.step_s for step in self.steps[1:] if step.bytes_by_axis is None] or \
            [step.step_s for step in self.steps]
        return sorted(plain)[len(plain) // 2]

    def finding(self) -> str:
        """Layout, ranks, steps and bytes sent along each axis, in one line without times."""
        ranks = f"{self.world_size} rank{'s' * (self.world_size > 1)}"
        sent = ", ".join(f"{axis} {sent:,}" for axis, sent in self.bytes_by_axis.items())
        return f"TrainingReport: {self.layout} on {ranks}, {len(self.steps)} steps" + (
            f"; bytes sent in a step: {sent}" if sent else "")

    def alternative(self) -> str:
        """What the picture shows, for who does not see it."""
        return f"{self.finding()}. {self._headline()}"

    def _headline(self) -> str:
        fell = f"from {self.losses[0]:.2f} to {self.losses[-1]:.2f}"
        return f"The loss went {fell} in {len(self.steps)} steps, under {self.layout}"

    def png(self) -> bytes:
        """Three panels: loss over steps, bytes sent by axis, bytes held by kind."""
        from matplotlib.ticker import MaxNLocator  # matplotlib only when drawn

        from course_lib.pictures.painter import new_figure, quiet, to_png

        figure = new_figure(3.4, self._headline(),
                            f"{self.steps[0].tokens:,} tokens per step on {self.world_size} ranks")
        loss, sent, held = figure.subplots(1, 3, width_ratios=(2, 1, 1))
        few = len(self.steps) <= 20  # then each step is seen
        loss.plot([step.step for step in self.steps], self.losses, color=BLUE, marker="o" if few else None, ms=4)
        loss.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True))
        loss.set_xlabel("step", fontsize=9, color=INK)
        loss.set_ylabel("loss (nats per token)", fontsize=9, color=INK)
        quiet(loss)
        bars(sent, self.bytes_by_axis, ORANGE, "sent per step, all ranks")
        bars(held, {kind.replace("_", " "): size for kind, size in self.memory_by_kind.items()}, TEAL,
             "held at most by a rank")
        return to_png(figure)

    def save(self, path: Path | str) -> None:
        """Write the picture to `path`, as PNG."""
        Path(path).write_bytes(self.png())


def bars(axes: "Axes", sizes: dict[str, int], colour: str, title: str) -> None:
    """A horizontal bar for each size above 0, its bytes written behind it."""
    from course_lib.pictures.painter import quiet

    shown = {name: size for name, size in sizes.items() if size}
    drawn = axes.barh(list(shown)[::-1], list(shown.values())[::-1], color=colour)
    axes.bar_label(drawn, [human_bytes(size) for size in list(shown.values())[::-1]], padding=3, fontsize=8)
    axes.set_title(title, fontsize=9, loc="left")
    axes.set_xlim(0, 1.5 * max(shown.values(), default=1))
    axes.set_xticks([])
    quiet(axes)
