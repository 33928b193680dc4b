"""HybridTrainer: a GPT trained under any layout, on real text, and what is worth knowing of each step.

    B rows a step, of all ranks      T tokens in a row      m micro-batches

Step i learns from batches(i, rank of dp, size of dp): a pure function of the step, so that every rank of a model reads
the same rows, every layout the same batch, and a run that goes on at step i what it would have read without a break.

What is sent along each axis, and held, is counted in one step, since counting slows it down; every further step has the
same.
"""

import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.costs.flops import step_flops, utilisation
from course_lib.facts import reported_as
from course_lib.groups.exchange import fingerprint
from course_lib.hybrid_parallel.layout import PLANE, ParallelLayout
from course_lib.hybrid_parallel.optimizer import HybridOptimizer, LearningRate, clip_grad_norm_
from course_lib.hybrid_parallel.parallelize import parallelize, require_dividing
from course_lib.pictures.drawn import Drawn
from course_lib.pictures.palette import BLUE, INK, ORANGE, TEAL
from course_lib.pictures.units import human_bytes
from course_lib.pipeline_parallel import Schedule
from course_lib.reference import GPT, GPTConfig, batches
from course_lib.reference.training import progress_bar
from course_lib.runtime import device, record_communication, record_memory, seconds
from course_lib.runtime.instruments.communication import CommunicationEvent, CommunicationLog, int_if_whole
from course_lib.why_distribute import shape_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PRECISIONS = {"fp32": None, "bf16": torch.bfloat16}
COUNTED_STEP = 1  # of those a trainer takes: the first one sends shapes besides, which later ones know
AXES_BY_NAME = (("tp",), ("cp",), ("pp",), ("dp",), ("dp", "cp"))


@dataclass(frozen=True)
class StepMetrics:
    """One step. `tokens` are those of the whole batch; mfu is None where the device's peak is not known.

    bytes_by_axis: what all ranks sent, and memory_by_kind: the most that any rank held of each kind; None but in the
    one step where they are counted.
    """

    step: int
    loss: float
    gradient_norm: float
    learning_rate: float
    step_s: float
    tokens: int
    mfu: float | None
    bytes_by_axis: dict[str, int] | None = None
    memory_by_kind: dict[str, int] | None = None

    @property
    def tokens_per_s(self) -> float:
        """Tokens of all ranks together, a second."""
        return self.tokens / self.step_s


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


class HybridTrainer:
    """Trains GPT(config), or what make_model() returns, under `layout`. Made on all ranks, with the same arguments.

        losses = launch(lambda: HybridTrainer(config, layout).train(20).losses, world_size=layout.world_size)[0]

    batch_size: B, of all ranks together; dp times num_microbatches has to divide it. learning_rate: a LearningRate, or
    a number that stays. precision: "fp32", or "bf16" for matrix products under autocast. max_norm: gradients are
    clipped to it; None leaves them. compiled: each stage goes through torch.compile. More: as of parallelize and AdamW.

    `step_number` is the next step's, which is all that says where in the text the run is; set it to go on elsewhere.
    """

    def __init__(self, config: GPTConfig, layout: ParallelLayout, *, batch_size: int = 16, num_microbatches: int = 1,
                 schedule: str | Callable[[int, int], Schedule] = "1F1B", sequence_parallel: bool = False,
                 precision: str = "fp32", learning_rate: LearningRate | float = 1e-3, weight_decay: float = 0.01,
                 max_norm: float | None = 1.0, tokens: Tensor | None = None, seed: int = 0, compiled: bool = False,
                 make_model: Callable[[], GPT] | None = None) -> None:
        require_dividing(batch_size, layout.dp, num_microbatches)
        if precision not in PRECISIONS:
            raise ValueError(f"precision={precision!r}: expected one of {', '.join(PRECISIONS)}")
        self.config, self.layout, self.batch_size, self.seed, self.tokens = config, layout, batch_size, seed, tokens
        self.learning_rate = learning_rate if callable(learning_rate) else LearningRate(learning_rate)
        self.max_norm, self.step_number, self.num_steps = max_norm, 0, 0
        self.run = None  # whose its checkpoints are: see checkpoints.py
        # All ranks make the same whole model, of which parallelize cuts a part for each.
        torch.manual_seed(seed)
        model = (make_model or (lambda: GPT(config)))()
        self.flops = step_flops(shape_of(config), batch_size)
        self.model = parallelize(model, layout, num_microbatches=num_microbatches, schedule=schedule,
                                 sequence_parallel=sequence_parallel, autocast=PRECISIONS[precision])
        if compiled:
            for stage in self.model.stages:
                stage.forward = torch.compile(stage.forward)
        # beta2 = 0.95: as reference.train
        self.optimizer = HybridOptimizer(self.model, torch.optim.AdamW, lr=self.learning_rate(0), betas=(0.9, 0.95),
                                         weight_decay=weight_decay)
        self.peak_flops_per_s = peak_of_device(PRECISIONS[precision] or torch.float32)
        # What is dropped: the same on ranks of tp, which hold the same activations, and drawn anew elsewhere
        where = layout.coordinates(dist.get_rank())
        torch.manual_seed(fingerprint(f"{seed} {where['dp']} {where['cp']} {where['pp']}") % 2**32)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of this rank of dp, (B/dp, T) each."""
        return batches(step, self.model.dp.r, self.model.dp.n, batch_size=self.batch_size, tokens=self.tokens,
                       sequence_length=self.config.sequence_length, seed=self.seed)

    def step(self) -> StepMetrics:
        """One step of all ranks. Raises FloatingPointError, on all of them, for a loss that is not finite."""
        rate = self.learning_rate(self.step_number)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        results: list[Tensor] = []
        with ExitStack() as recorders:
            counts = self.num_steps == COUNTED_STEP
            if counts:
                sent = recorders.enter_context(record_communication())
                held = recorders.enter_context(record_memory(model=self.model, optimizer_state=self.optimizer.tensors))
            # Reading a number waits for the device: only behind the clock, and once for both.
            step_s = seconds(lambda: results.extend(self._update()))
        loss, norm = (result.item() for result in results)
        # The loss is the same on all ranks, so all of them raise.
        if loss != loss or loss in (float("inf"), -float("inf")):
            raise FloatingPointError(f"the loss is {loss} at step {self.step_number}: often the learning rate is too "
                                     f"high; it was {rate:g}")
        by_axis, by_kind = (self._gather_counts(bytes_by_axis(sent, self.layout), held.peak_by_kind)
                            if counts else (None, None))
        done = StepMetrics(self.step_number, loss, norm, rate, step_s, self.batch_size * self.config.sequence_length,
                           mfu(self.flops, step_s, self.layout.world_size, self.peak_flops_per_s), by_axis,
                           by_kind)
        self.step_number, self.num_steps = self.step_number + 1, self.num_steps + 1
        return done

    def _update(self) -> tuple[Tensor, Tensor]:
        """(loss, norm of the gradient before it was clipped)."""
        loss = self.model.forward_backward(*(part.to(device()) for part in self.batch(self.step_number)))
        norm = clip_grad_norm_(self.model, float("inf") if self.max_norm is None else self.max_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss, norm

    def _gather_counts(self, sent: dict, held: dict[str, int]) -> tuple[dict[str, int], dict[str, int]]:
        everyones: list = [None] * self.layout.world_size
        dist.all_gather_object(everyones, (sent, held))
        return (sum_by_axis([sent for sent, _ in everyones]),
                {kind: max(held[kind] for _, held in everyones) for kind in held})

    def train(self, num_steps: int, *, metrics_file: Path | str | None = None, progress: bool = True,
              after_step: Callable[["HybridTrainer"], object] | None = None) -> TrainingReport:
        """`num_steps` further steps. Rank 0 shows the progress, and adds a line a step to metrics_file.

        after_step(self): on all ranks after each step, when `step_number` counts it, to save a checkpoint say.
        """
        if num_steps < 1:
            raise ValueError(f"num_steps={num_steps!r}: expected at least 1")
        first, steps = dist.get_rank() == 0, []
        with progress_bar(num_steps, f"training {self.layout}", shown=first and progress) as bar:
            for _ in range(num_steps):
                steps.append(self.step())
                if first and metrics_file is not None:
                    write_line(metrics_file, steps[-1])
                if after_step is not None:
                    after_step(self)
                bar.set_postfix(loss=f"{steps[-1].loss:.3f}", refresh=False)
                bar.update()
        return TrainingReport(str(self.layout), self.layout.world_size, tuple(steps))


def write_line(path: Path | str, metrics: StepMetrics) -> None:
    """Append the step as a line of JSON to `path`."""
    with open(path, "a", encoding="utf-8") as lines:
        lines.write(json.dumps({**asdict(metrics), "tokens_per_s": metrics.tokens_per_s}) + "\n")


# Bytes

def bytes_by_axis(log: CommunicationLog, layout: ParallelLayout) -> dict[str, int | Fraction]:
    """What the ranks of `log` sent, by the axis of their group: "tp", "dp+cp" for both, "world" and so on."""
    alike: dict[tuple, list[CommunicationEvent]] = {}
    for event in log.events:
        if event.sent_bytes:
            alike.setdefault((event.rank, event.op == "all_to_all", event.group), []).append(event)
    found: dict[str, int | Fraction] = {}
    # A step has thousands of events and a few groups: the axis is looked up once for each group.
    for events in alike.values():
        axis = axis_of(events[0], layout)
        found[axis] = int_if_whole(found.get(axis, 0) + sum(event.sent_bytes for event in events))
    return found


def axis_of(event: CommunicationEvent, layout: ParallelLayout) -> str:
    """Groups of several axes may be the same ranks: then the first of AXES_BY_NAME, and ep or etp for an all-to-all.

    "dp+cp+tp" are all ranks of a stage, among which experts' choices are counted.
    """
    ranks, dealt_out = list(event.group), layout.ep * layout.etp > 1
    by_experts = (("ep",), ("etp",)) if event.op == "all_to_all" and dealt_out else ()
    for axes in (*by_experts, *AXES_BY_NAME, *([("edp",)] if dealt_out else [])):
        if layout.group_of(event.rank, *axes) == ranks:
            return "+".join(axes)
    return "dp+cp+tp" if layout.pp > 1 and layout.group_of(event.rank, *PLANE) == ranks else "world"


def sum_by_axis(of_ranks: list[Mapping[str, int | Fraction]]) -> dict[str, int]:
    """The sum over the ranks, axis by axis."""
    totals: dict[str, Fraction] = {}
    for of_rank in of_ranks:
        for axis, sent in of_rank.items():
            totals[axis] = totals.get(axis, Fraction(0)) + Fraction(sent)
    return {axis: round(totals[axis]) for axis in sorted(totals)}


# Speed

def mfu(flops: int, step_s: float, world_size: int, peak_flops_per_s: float | None) -> float | None:
    """The share of the peak that the model's FLOPs reach; None where the device's peak is not known."""
    return None if peak_flops_per_s is None else utilisation(flops, step_s, world_size, peak_flops_per_s)


def peak_of_device(dtype: torch.dtype) -> float | None:
    """FLOP/s of this rank's device in `dtype`: on a data sheet, or on a CPU those of the fastest of a few products.

    On a CPU all ranks measure at the same time, as they will compute; so it is the share that each gets. None for a GPU
    that facts does not know.
    """
    here = device()
    if here.type == "cpu":
        # Large enough to reach the peak, small enough to take milliseconds on each start.
        a = torch.ones(256, 256, dtype=dtype, device="cpu")
        return 2 * len(a)**3 / min(seconds(torch.mm, a, a) for _ in range(4))
    known = reported_as(torch.get_device_module(here).get_device_name(here))
    number_format = {torch.bfloat16: "bf16", torch.float16: "fp16"}.get(dtype, "fp32")
    return known.peak_flops_per_s(number_format) if known else None


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
