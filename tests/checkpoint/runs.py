"""One small GPT, trained the same way in every layout that a chapter offers: each can go on where another one stopped.

Apart from the tests, since ranks import it in every launch.

    batch (12, 12): rows, tokens      12 heads, a vocabulary of 36: what 1, 2, 3 and 4 ranks divide
"""

from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib import checkpoint
from course_lib.checkpoint.accidents import Kill
from course_lib.data_parallel import DistributedDataParallel
from course_lib.expert_parallel import SINGLE, moe_gpt, moe_layers
from course_lib.hybrid_parallel import HybridTrainer, ParallelLayout, resume_run, save_run
from course_lib.pipeline_parallel import PipelineParallel, gpipe, partition
from course_lib.reference import GPT, GPTConfig, next_token_loss
from course_lib.tensor_parallel import parallelize
from course_lib.zero import FullyShardedDataParallel, ZeroOptimizer

HYBRID = GPTConfig(num_layers=4, hidden_size=16, num_heads=4, vocab_size=256, sequence_length=16)
CONFIG = GPTConfig(num_layers=2, hidden_size=24, num_heads=12, vocab_size=36, sequence_length=12)
RATE = {"lr": 1e-2, "weight_decay": 0.1}
BEFORE, AFTER = 2, 3  # steps before the checkpoint, and after it
LAYOUTS = ("plain", "ddp", "tp", "sp", "pp", "zero1", "zero2", "fsdp")


def rows(step: int) -> tuple[Tensor, Tensor]:
    """The whole batch of a step: tokens and targets."""
    tokens = torch.randint(36, (12, 13), generator=torch.Generator().manual_seed(step), device="cpu")
    return tokens[:, :-1], tokens[:, 1:]


class Run:
    """A GPT and its AdamW in one of LAYOUTS over the world."""

    def __init__(self, layout: str, seed: int = 0, dtype: torch.dtype = torch.float64) -> None:
        torch.manual_seed(seed)
        model = GPT(CONFIG).to(dtype)
        self.layout, self.pipeline = layout, None
        n, r = (dist.get_world_size(), dist.get_rank()) if dist.is_initialized() else (1, 0)
        self.shards = lambda whole: whole.chunk(n)[r] if layout in ("ddp", "zero1", "zero2", "fsdp") else whole
        if layout == "pp":
            stages = [partition(model, n)[r]]
            self.pipeline = PipelineParallel(stages, gpipe(n, 2), None,
                                             lambda logits, targets: next_token_loss(logits, targets))
            self.model, parameters = stages, list(self.pipeline.parameters())
        else:
            self.model = {"ddp": DistributedDataParallel, "fsdp": FullyShardedDataParallel, "tp": parallelize,
                          "sp": lambda model: parallelize(model, sequence_parallel=True)
                          }.get(layout, lambda model: model)(model)
            parameters = list(self.model.parameters())
        stage = {"zero1": 1, "zero2": 2}.get(layout)
        self.optimizer = (torch.optim.AdamW(parameters, **RATE) if stage is None else
                          ZeroOptimizer(parameters, torch.optim.AdamW, stage, bucket_cap_mb=0.01, **RATE))

    def train(self, first: int, last: int) -> list[float]:
        """Steps `first` to `last`; the mean loss over all rows of each."""
        return [self.step(number) for number in range(first, last)]

    def step(self, number: int) -> float:
        inputs, targets = map(self.shards, rows(number))
        self.optimizer.zero_grad()
        if self.pipeline is not None:
            loss = self.pipeline.step(inputs, targets)
        else:
            _, loss = self.model(inputs, targets)
            loss.backward()
        self.optimizer.step()
        loss = loss.detach().clone()
        if self.shards(torch.arange(12)).numel() < 12:
            dist.all_reduce(loss)
            loss /= dist.get_world_size()
        return loss.item()

    def save(self, folder: Path, step: int, **how: object) -> object:
        return checkpoint.save(folder, self.model, self.optimizer, step, extra={"seed": 0}, **how)

    def load(self, folder: Path) -> checkpoint.Loaded:
        return checkpoint.load(folder, self.model, self.optimizer)


def trainer(text: str) -> HybridTrainer:
    """Chapter 9's, of a layout and, behind a slash, a schedule: "pp2,tp2/zb-v"; or "dp2,ep2/experts"."""
    layout, _, more = text.partition("/")
    layout, experts = ParallelLayout.from_string(layout), more == "experts"
    return HybridTrainer(HYBRID, layout, batch_size=16, num_microbatches=2 if layout.pp > 1 else 1,
                         schedule="1f1b" if experts else more or "1f1b", learning_rate=3e-3,
                         make_model=with_experts if experts else None)


def with_experts() -> GPT:
    model = moe_gpt(GPT(HYBRID), 4, balance=0.01, group=SINGLE, tokens_group=SINGLE)
    for layer in moe_layers(model):
        layer.router.bias.copy_(torch.tensor([0.1, 0.0, 0.0, -0.1]))  # a buffer, which has to come along
    return model


class HybridRun:
    """The same of every axis at once."""

    def __init__(self, layout: str) -> None:
        self.layout, self.trainer = layout, trainer(layout)

    def train(self, first: int, last: int) -> list[float]:
        return [self.trainer.step().loss for _ in range(first, last)]

    def save(self, folder: Path, step: int) -> None:
        save_run(self.trainer, folder)

    def load(self, folder: Path) -> checkpoint.Loaded:
        """With something else in its memory."""
        self.train(0, 1)
        for buffer in self.trainer.model.buffers():
            buffer.zero_()
        loaded = resume_run(self.trainer, folder)
        assert self.trainer.step_number == loaded.step
        assert self.trainer.run.id == checkpoint.read_manifest(loaded.path)["run"]
        return loaded


def save_in(layouts: tuple[str, ...], folder: Path) -> dict[str, list[float]]:
    """On ranks: train in each of the layouts, save into folder/LAYOUT-WORLD, and go on: the losses from there on."""
    losses = {}
    for layout in layouts:
        run = Run(layout) if layout in LAYOUTS else HybridRun(layout)
        run.train(0, BEFORE)
        name = f"{layout}-{dist.get_world_size()}"
        run.save(folder / name.replace("/", " "), BEFORE)
        losses[name] = run.train(BEFORE, BEFORE + AFTER)
        checkpoint.finish()
    return losses


def load_in(pairs: tuple[tuple[str, str], ...], folder: Path) -> list[tuple[list[float], bool]]:
    """On ranks: for each (LAYOUT-WORLD, layout) the losses of a new run that goes on from there; same layout?"""
    found = []
    for source, layout in pairs:
        run = Run(layout, seed=1) if layout in LAYOUTS else HybridRun(layout)
        loaded = run.load(folder / source.replace("/", " "))
        assert loaded.step == BEFORE
        assert loaded.extra == {"seed": 0} or loaded.extra["layout"] == source.partition("-")[0].partition("/")[0]
        found.append((run.train(BEFORE, BEFORE + AFTER), loaded.same_layout))
    return found


def train_on(kill: Kill, folder: Path, steps: int) -> tuple[int, list[float]]:
    """On ranks: go on from the last checkpoint to `steps`, saving after every second step. From where, and the losses.
    """
    begun = checkpoint.latest(folder) is not None
    run = Run("zero1", seed=int(begun))
    first = run.load(folder).step if begun else 0
    losses = []
    for step in range(first, steps):
        kill.before_step(step)
        losses.append(run.step(step))
        if step % 2:
            with kill.around_save(step):
                run.save(folder, step + 1, keep=2, background=True)
    checkpoint.finish()
    return first, losses


def of_16_bits(folder: Path) -> tuple[bool, bool]:
    """On ranks: whether parameters of 16 bits, whose 32-bit copies are dealt out, go on bit by bit; and whether a run
    in 32 bits begins with those copies.
    """
    run = Run("zero1", dtype=torch.bfloat16)
    run.train(0, BEFORE)
    run.save(folder, BEFORE)
    copies = [of_one["master_weight"] for of_one in run.optimizer.state_dict()["state"].values()]
    losses = run.train(BEFORE, BEFORE + AFTER)
    again, wide = Run("zero1", seed=1, dtype=torch.bfloat16), Run("fsdp", seed=1, dtype=torch.float32)
    again.load(folder)
    wide.load(folder)
    found = list(wide.model.full_state_dict().values())
    return again.train(BEFORE, BEFORE + AFTER) == losses, all(any(torch.equal(copy, one) for one in found)
                                                              for copy in copies)
