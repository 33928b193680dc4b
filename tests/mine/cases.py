"""Answers to train with, without the checks that find() makes: the solutions, and solutions with a line changed."""

from collections.abc import Collection
from pathlib import Path

import nbformat

from course_lib.expert_parallel import SINGLE, moe_gpt
from course_lib.hybrid_parallel import HybridTrainer, ParallelLayout, TrainingReport
from course_lib.mine import SLOTS, Answers, Outcome, Part, TrainedBy
from course_lib.mine.cells import read_notebook
from course_lib.mine.find import COURSE, YOURS, function_of
from course_lib.reference import GPT, GPTConfig
from course_lib.runtime import launch

SOLUTIONS = Path(__file__).resolve().parents[2] / "solutions"
CONFIG = GPTConfig(2, 32, 4, sequence_length=16)


def unchecked(folder: Path = SOLUTIONS, numbers: Collection[str] = tuple(SLOTS)) -> Answers:
    notebooks = tuple(read_notebook(path) for path in sorted(folder.glob("0[2-9]_*/0[2-9]_*.ipynb")))
    return Answers(notebooks, tuple(Part(number, function_of(number), YOURS if number in numbers else COURSE)
                                    for number in SLOTS))


def train(layout: str, num_steps: int = 3, experts: dict | None = None, **options) -> TrainingReport:
    if experts:
        options["make_model"] = lambda: moe_gpt(GPT(CONFIG), group=SINGLE, tokens_group=SINGLE, **experts)
    trainer = HybridTrainer(CONFIG, ParallelLayout.from_string(layout), batch_size=12, **options)
    return trainer.train(num_steps, progress=False)


def outcome(answers: Answers, layout: str, experts: dict | None = None, **options) -> Outcome:
    world_size = ParallelLayout.from_string(layout).world_size
    report, account = launch(TrainedBy(train, answers), layout, experts=experts, world_size=world_size, **options)[0]
    return Outcome(answers, account, report, launch(train, "dp1", experts=experts, world_size=1)[0].losses)


def with_line(folder: Path, chapter: str, old: str, new: str) -> Path:
    """`folder` with the solutions of `chapter` in it, `old` replaced by `new` in the one cell that has it."""
    notebook = nbformat.read(SOLUTIONS / chapter / f"{chapter}.ipynb", as_version=4)
    cell, = (cell for cell in notebook.cells if cell.cell_type == "code" and old in cell.source)
    cell.source = cell.source.replace(old, new)
    (folder / chapter).mkdir()
    nbformat.write(notebook, folder / chapter / f"{chapter}.ipynb")
    return folder
