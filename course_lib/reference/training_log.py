"""What a training run reports: a value that draws itself in a notebook."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from course_lib.pictures.drawn import Drawn
from course_lib.pictures.palette import BLUE, INK, ORANGE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GRID = "#E5E5E5"


@dataclass(frozen=True, repr=False)
class TrainingLog(Drawn):
    """The losses of one run, in nats a token.

    `losses[i]` is the mean over this rank's rows at step i, before the i-th update. `held_out_before` and
    `held_out_after` are the losses on held-out text before the first and after the last update, or None when
    they were not measured. `unigram_entropy` is that of the held-out text, the best that letter frequencies
    alone can do on it. `tokens_seen` counts the training tokens of all ranks together.
    """

    losses: tuple[float, ...]
    unigram_entropy: float
    tokens_seen: int
    held_out_before: float | None = None
    held_out_after: float | None = None

    @property
    def learned_from_context(self) -> bool:
        """Whether the held-out loss ended below what letter frequencies alone can reach."""
        return self.held_out_after is not None and self.held_out_after < self.unigram_entropy

    def finding(self) -> str:
        # Without a measured number: committed notebooks are compared word for word on any machine.
        run = f"TrainingLog: {len(self.losses):,} steps, {self.tokens_seen:,} tokens"
        if self.held_out_after is None:
            return run
        side = "below" if self.learned_from_context else "not below"
        return f"{run}; held-out loss {side} the unigram entropy of the text"

    def alternative(self) -> str:
        return f"{self.finding()}. {self._headline()}"

    def png(self) -> bytes:
        from course_lib.pictures.figures import to_png  # matplotlib only when drawn: ranks train without it

        return to_png(self._figure())

    def _figure(self) -> "Figure":
        from matplotlib.figure import Figure

        figure = Figure(figsize=(8, 3.8), dpi=120, facecolor="white", layout="constrained")
        axes = figure.subplots()
        num_steps = len(self.losses)
        axes.plot(range(num_steps), self.losses, color=BLUE, linewidth=1.6, label="training batches")
        held_out = [(0, self.held_out_before), (num_steps, self.held_out_after)]
        held_out = [(updates, loss) for updates, loss in held_out if loss is not None]
        if held_out:
            axes.plot(
                *zip(*held_out, strict=True), "o", color=ORANGE, markersize=8, zorder=3, label="held-out text"
            )
        for updates, loss in held_out:
            offset = {"xytext": (9, 0), "textcoords": "offset points", "va": "center"}
            axes.annotate(f"{loss:.2f}", (updates, loss), color=INK, weight="bold", **offset)
        label = f"unigram entropy, {self.unigram_entropy:.2f}: the best without context"
        axes.axhline(self.unigram_entropy, color=INK, linewidth=1.2, linestyle=(0, (5, 3)), label=label)
        axes.set(
            xlabel="optimizer steps done",
            ylabel="loss (nats per token)",
            xlim=(-0.02 * num_steps, 1.09 * num_steps),
        )
        axes.set_title(self._headline(), loc="left", color=INK, weight="bold", pad=12)
        axes.legend(frameon=False)
        axes.grid(axis="y", color=GRID, linewidth=0.7)
        axes.spines[["top", "right"]].set_visible(False)
        return figure

    def _headline(self) -> str:
        if self.held_out_after is None:
            return f"Training loss went from {self.losses[0]:.2f} to {self.losses[-1]:.2f} nats per token"
        learned = "Learned from context" if self.learned_from_context else "Not yet learned from context"
        return (
            f"{learned}: held-out loss {self.held_out_after:.2f}, unigram entropy {self.unigram_entropy:.2f}"
        )
