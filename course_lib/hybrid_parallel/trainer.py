"""HybridTrainer: a GPT trained under any layout, on real text, and what each step took.

    B rows a step, of all ranks      T tokens in a row      m micro-batches

Step i learns from batches(i, rank of dp, size of dp): a pure function of the step, so that every rank of a model reads
the same rows, every layout the same batch, and a run that goes on at step i what it would have read without a break.
"""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.costs.flops import step_flops
from course_lib.groups.exchange import fingerprint
from course_lib.hybrid_parallel import metrics
from course_lib.hybrid_parallel.layout import ParallelLayout
from course_lib.hybrid_parallel.learning_rate import LearningRate
from course_lib.hybrid_parallel.metrics import StepMetrics
from course_lib.hybrid_parallel.norms import clip_grad_norm_
from course_lib.hybrid_parallel.optimizer import HybridOptimizer
from course_lib.hybrid_parallel.parallelize import parallelize
from course_lib.hybrid_parallel.report import TrainingReport
from course_lib.pipeline_parallel import Schedule
from course_lib.reference import GPT, GPTConfig, batches
from course_lib.reference.training import progress_bar
from course_lib.runtime import device, record_communication, record_memory, seconds
from course_lib.why_distribute import shape_of

PRECISIONS = {"fp32": None, "bf16": torch.bfloat16}
COUNTED_STEP = 1  # of those a trainer takes: the first one sends shapes besides, which later ones know


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
        self.peak_flops_per_s = metrics.peak_of_device(PRECISIONS[precision] or torch.float32)
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
        by_axis, by_kind = (self._gather_counts(metrics.bytes_by_axis(sent, self.layout), held.peak_by_kind)
                            if counts else (None, None))
        done = StepMetrics(self.step_number, loss, norm, rate, step_s, self.batch_size * self.config.sequence_length,
                           metrics.mfu(self.flops, step_s, self.layout.world_size, self.peak_flops_per_s), by_axis,
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
        return (metrics.sum_by_axis([sent for sent, _ in everyones]),
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
                    metrics.write_line(metrics_file, steps[-1])
                if after_step is not None:
                    after_step(self)
                bar.set_postfix(loss=f"{steps[-1].loss:.3f}", refresh=False)
                bar.update()
        return TrainingReport(str(self.layout), self.layout.world_size, tuple(steps))


def require_dividing(batch_size: int, dp: int, num_microbatches: int) -> None:
    """ValueError unless dp replicas with so many micro-batches each divide the batch evenly."""
    if batch_size < 1 or num_microbatches < 1 or batch_size % (dp * num_microbatches):
        raise ValueError(f"batch_size={batch_size} with dp={dp} and num_microbatches={num_microbatches}: expected a "
                         f"multiple of {dp * num_microbatches}, so that all micro-batches have as many rows")
