"""What ranks do in test_hybrid.py: apart from it, since they import it in every launch."""

from pathlib import Path

import torch

from course_lib import checkpoint
from course_lib.expert_parallel import SINGLE, moe_gpt, moe_layers
from course_lib.hybrid_parallel import HybridTrainer, ParallelLayout, resume_run, save_run
from course_lib.reference import GPT, GPTConfig

CONFIG = GPTConfig(num_layers=4, hidden_size=16, num_heads=4, vocab_size=256, sequence_length=16)
BEFORE, AFTER = 3, 3


def trainer(text: str) -> HybridTrainer:
    """Of a layout and, behind a slash, a schedule: "pp2,tp2/zb-v"; or "dp2,ep2/experts"."""
    layout, _, more = text.partition("/")
    layout, experts = ParallelLayout.from_string(layout), more == "experts"
    return HybridTrainer(CONFIG, layout, batch_size=16, num_microbatches=2 if layout.pp > 1 else 1,
                         schedule="1f1b" if experts else more or "1f1b", learning_rate=3e-3,
                         make_model=with_experts if experts else None)


def with_experts() -> GPT:
    model = moe_gpt(GPT(CONFIG), 4, balance=0.01, group=SINGLE, tokens_group=SINGLE)
    for layer in moe_layers(model):
        layer.router.bias.copy_(torch.tensor([0.1, 0.0, 0.0, -0.1]))  # a buffer, which has to come along
    return model


def losses(run: HybridTrainer, steps: int) -> list[float]:
    return [run.step().loss for _ in range(steps)]


def save_in(layouts: tuple[str, ...], folder: Path) -> dict[str, list[float]]:
    """Train and save under each; the losses from the checkpoint on."""
    found = {}
    for layout in layouts:
        run = trainer(layout)
        losses(run, BEFORE)
        save_run(run, folder / layout.replace("/", " "))
        found[layout] = losses(run, AFTER)
        checkpoint.finish()
    return found


def load_in(pairs: tuple[tuple[str, str], ...], folder: Path) -> list[tuple[list[float], bool]]:
    """For each (layout that saved, layout): the losses of a new run from there on, and whether it is the same layout.
    """
    found = []
    for source, layout in pairs:
        run = trainer(layout)
        losses(run, 1)  # something else is in its memory
        for buffer in run.model.buffers():
            buffer.zero_()
        loaded = resume_run(run, folder / source.replace("/", " "))
        assert run.run.id == checkpoint.read_manifest(loaded.path)["run"]
        assert run.step_number == loaded.step == BEFORE and loaded.extra["layout"] == source.partition("/")[0]
        found.append((losses(run, AFTER), loaded.same_layout))
    return found
