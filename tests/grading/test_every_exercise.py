"""What holds of every exercise: fair trials, answers of any form judged, a run that a rank may know, class marks."""

import importlib.util
from pathlib import Path

import nbformat
import pytest
import torch

from course_lib.grading.exercise import SentBytes
from course_lib.grading.registry import exercises_of
from course_lib.grading.trusted.preprocessor import TrustedGrade
from tests.grading.class_exercise import MODES

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = {int(path.name[:2]): path.name for path in sorted((ROOT / "solutions").iterdir())}
EVERY = [asked for chapter in CHAPTERS for asked in exercises_of(chapter)]
BY_NUMBER = pytest.mark.parametrize("asked", EVERY, ids=lambda each: each.number)

# Forged by hand: no `run` gives them, but a rank may send them.
STRANGE = [None, 3, "x" * 1000, [], {}, {"returned": None}, {"returned": "a Liar", "tensor": 7}]
STRANGE += [{"returned": t, "tensor": t} for t in (
    torch.tensor(1.0), torch.empty(0), torch.zeros(6, dtype=torch.complex64), torch.zeros(6, dtype=torch.int8),
    torch.zeros(6).to_sparse(), torch.full((6,), float("nan")), torch.zeros(2, 3), torch.empty(6, device="meta"))]


@BY_NUMBER
def test_the_same_seed_gives_the_same_trials(asked):
    for a, b in zip(asked.trials(seed=4), asked.trials(seed=4), strict=True):
        assert a.label == b.label and repr(a.inputs) == repr(b.inputs)


@BY_NUMBER
def test_whatever_ranks_answer_is_judged_in_words_and_nothing_is_called_measured(asked):
    trial = asked.trials(seed=0)[0]
    n = trial.world_size
    for strange in STRANGE:
        judged = asked.judge(trial, [strange] * n, SentBytes([[0] * n for _ in range(n)], exact=False))
        assert isinstance(judged.cause, str) and len(judged.cause) < 500 and not judged.figures(), strange


@BY_NUMBER
def test_what_runs_on_a_rank_is_a_function_of_on_rank_and_nothing_else_is_sent_there(asked):
    assert asked.run.__module__.startswith("course_lib.grading.on_rank.")
    assert getattr(importlib.import_module(asked.run.__module__), asked.run.__name__) is asked.run
    assert all(importlib.util.find_spec(module) for module in asked.imports)


OTHERS = sorted(CHAPTERS.keys() - {2})  # which has test_nbgrader.py


@pytest.mark.sweep("chapter", few=[4, 6], all=OTHERS,
                   words=f"the solutions of 2 chapters of {len(OTHERS)}, graded for a class")
def test_a_class_gets_full_marks_for_the_solutions(chapter):
    require_marks(chapter, "solutions", "stream", "correct")


# What a stub is called does not depend on its chapter: test_exercises.py runs the stubs of all chapters with `check`.
@pytest.mark.sweep("chapter", few=[4], all=OTHERS, words=f"the stubs of 1 chapter of {len(OTHERS)}, graded for a class")
def test_a_class_gets_nothing_for_stubs(chapter):
    require_marks(chapter, "exercises", "error", "not written yet")


def require_marks(chapter, folder, kind, words):
    name = CHAPTERS[chapter]
    notebook = nbformat.read(ROOT / folder / name / f"{name}.ipynb", as_version=4)
    graded, _ = TrustedGrade(isolation=MODES[-1], seed=6, time_limit_s=60.0).preprocess(notebook, {})
    outputs = [cell.outputs[0] for cell in graded.cells if cell.cell_type == "code" and cell.outputs]
    assert [output.output_type for output in outputs] == [kind] * len(exercises_of(chapter)), outputs
    assert all(words in (output.get("text") or output.get("ename")) for output in outputs)
