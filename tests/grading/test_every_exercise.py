"""What holds of every exercise: fair trials, causes told apart, answers of any form judged, marks for a class."""

from pathlib import Path

import nbformat
import pytest
import torch

from course_lib.grading.compare import alike
from course_lib.grading.exercise import Exercise, Traffic
from course_lib.grading.registry import exercises_of
from course_lib.grading.trusted import TrustedGrade

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


@pytest.mark.parametrize("asked", [asked for asked in EVERY if type(asked).expected is not Exercise.expected],
                         ids=lambda each: each.number)  # of the others any answer that is good enough passes
def test_every_mistake_gives_another_answer_than_the_right_one_on_some_trial(asked):
    look_right: set[str] | None = None
    for trial in asked.trials(seed=2):
        arguments = asked.arguments(trial)
        right = asked.expected(*arguments)
        here = {cause for cause, would_give in asked.mistakes(*arguments) if alike(would_give, right, asked.tolerance)}
        look_right = here if look_right is None else look_right & here
        if not look_right:
            return
    assert not look_right


@BY_NUMBER
def test_whatever_ranks_answer_is_judged_in_words_and_nothing_is_called_measured(asked):
    trial = asked.trials(seed=0)[0]
    n = trial.world_size
    for strange in STRANGE:
        judged = asked.judge(trial, [strange] * n, Traffic([[0] * n for _ in range(n)], exact=False))
        assert isinstance(judged.cause, str) and len(judged.cause) < 500 and not judged.figures(), strange


@pytest.mark.parametrize("chapter", CHAPTERS.keys() - {2})  # which has test_nbgrader.py
@pytest.mark.parametrize("folder, kind, words", [
    ("solutions", "stream", "correct"), ("exercises", "error", "not written yet")])
def test_a_class_gets_full_marks_for_the_solutions_and_none_for_stubs(chapter, folder, kind, words):
    name = CHAPTERS[chapter]
    notebook = nbformat.read(ROOT / folder / name / f"{name}.ipynb", as_version=4)
    graded, _ = TrustedGrade(seed=6, time_limit_s=60.0).preprocess(notebook, {})
    outputs = [cell.outputs[0] for cell in graded.cells if cell.cell_type == "code" and cell.outputs]
    assert [output.output_type for output in outputs] == [kind] * len(exercises_of(chapter)), outputs
    assert all(words in (output.get("text") or output.get("ename")) for output in outputs)
