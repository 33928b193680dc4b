"""What holds of every exercise: fair trials, answers of any form judged, a run that a rank may know, class marks."""

import importlib.util
import math
from functools import cache
from pathlib import Path

import nbformat
import pytest
import torch

from course_lib.grading.__main__ import explain
from course_lib.grading.chapters import text_for_ranks
from course_lib.grading.compare import describe
from course_lib.grading.exercise import SEED, SentBytes
from course_lib.grading.kinds import NumberExercise
from course_lib.grading.registry import exercise, exercises_of
from course_lib.grading.trusted.preprocessor import TrustedGrade
from tests.grading.class_exercise import BEST as ISOLATION
from tools.answers import rows
from tools.solutions import SOLUTIONS, names_of, solution_cell

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = {int(path.name[:2]): path.name for path in sorted((ROOT / "solutions").iterdir())}
EVERY = [asked for chapter in CHAPTERS for asked in exercises_of(chapter)]
BY_NUMBER = pytest.mark.parametrize("asked", EVERY, ids=lambda each: each.number)
SEEDS = range(1, 5)
names_of_chapter = cache(lambda chapter: names_of(SOLUTIONS[chapter]))

# Whose function needs no other rank: it can be asked here, at many seeds.
ALONE = ["1.1", "1.2", "1.3", "1.4", "1.6", "2.7", "2.8", "3.2", "3.6", "3.8", "3.9", "4.1", "4.2", "4.3", "4.4", "4.6",
         "4.7", "4.8", "4.9", "5.8", "6.1", "6.8", "7.5", "7.6", "7.8", "8.1", "8.2", "8.5", "8.6", "8.8", "9.1", "9.2",
         "9.5", "9.6", "9.7", *(f"10.{number}" for number in range(1, 9))]
# What the best answer of all reaches, as a share of par: were par any wider, a worse one would pass.
BEST = {**dict.fromkeys(["4.1", "4.2", "4.4", "4.6", "4.7", "4.8", "9.2", "10.3"], 1), "10.4": 1.01, "10.5": 1.01}

# Forged by hand: no `run` gives them, but a rank may send them.
STRANGE = [None, 3, "x" * 1000, [], {}, {"returned": None}, {"returned": "a Liar", "tensor": 7}]
STRANGE += [{"returned": t, "tensor": t} for t in (
    torch.tensor(1.0), torch.empty(0), torch.zeros(6, dtype=torch.complex64), torch.zeros(6, dtype=torch.int8),
    torch.zeros(6).to_sparse(), torch.full((6,), float("nan")), torch.zeros(2, 3), torch.empty(6, device="meta"))]
# What the exercises' own forms nearly are: orders, cuts, layouts, buckets, groups, plans, causes, gradients.
STRANGE += ["nothing (None)", "a Tensor", -math.inf, True, 10**400, 1j, torch.ones(2), [None], [None] * 3, [[]], [[[]]],
            ["F"], ["F0 "], ["X0"], ["F00000"], ["F0.9"], ["F0.x"], ["F99"], ["F-1"], ["F0", "F0"], [["F0"]],
            ["F0"] * 5000, [0], [4], [99], [0, 3, 3], [2, 2], [-1, 4, 3], [2, 2, 1], [True, 2, 3], ["2", "2", "2"],
            [2.0, 2.0, 2.0], [7, -3, 2], [4, 8, 1], [-4, 8], [4, 0], [4.0, 8.0], ["4", "8"], [0, 0, 0], [[0]], [[99]],
            [[0, 0]], [[0], [1]], [[[0.5]], [[0]]], [[0, 1, 2, 3, 4, 5], [0]], [math.nan], [-1.0], ["a", "b", "e", "e"],
            [["best", 1]], [["best"]], ["tp", -1.0], ["tp", "2"], ["tp", math.inf], [[{}, 1.0]], [["A100", 1.0]],
            {"dp": "1", "tp": 1, "pp": 1}, {"dp": -1, "tp": -1, "pp": 1}, {"layout": {"dp": 1}, "asked": 1},
            {"layout": None, "asked": 1}, {"parameters": 1.0}, {"weight": "a str", "bias": None},
            {"y": 1, "gradients": [2]}, {"f": torch.ones(1), "loss": math.inf, "norm": None},
            [torch.ones(2, device="meta")], {"out": torch.arange(3), "lse": None}]


@BY_NUMBER
def test_the_same_seed_gives_the_same_trials_and_whatever_is_drawn_differs_with_it(asked):
    for a, b in zip(asked.trials(seed=4), asked.trials(seed=4), strict=True):
        assert a.label == b.label and repr((a.inputs, a.hidden)) == repr((b.inputs, b.hidden))
    drawn = {repr([(trial.inputs, trial.hidden) for trial in asked.trials(seed)]) for seed in range(1, 7)}
    assert (len(drawn) == 1) == (asked.number in ("3.6", "3.9"))


@BY_NUMBER
def test_whatever_ranks_answer_is_judged_in_words_and_nothing_is_called_measured(asked):
    trial = asked.trials(seed=0)[0]
    n = trial.world_size
    for strange in STRANGE:
        judged = asked.judge(trial, [strange] * n, SentBytes([[0] * n for _ in range(n)], exact=False))
        assert judged.fault and isinstance(judged.cause, str) and len(judged.cause) < 500, strange
        assert not judged.right or judged.over, strange
        assert not judged.figures() or judged.over, strange


@pytest.mark.parametrize("number", ALONE)
def test_a_solution_that_needs_no_other_rank_is_right_at_every_seed_and_where_par_is_the_best_it_reaches_it(number):
    asked = exercise(number)
    function = names_of_chapter(int(number.partition(".")[0]))[asked.function]
    for trial in (trial for seed in SEEDS for trial in asked.trials(seed)):
        questions = []
        ask = [lambda it, trial=trial: questions.append(it) or asked.reply(trial, it)] if asked.asks else []  # noqa: B023
        answers = [asked.run(function, inputs, *ask) for inputs in trial.inputs]
        if asked.number == "9.7":
            answers[0]["asked"] = len(questions)
        judged = asked.judge(trial, answers, SentBytes([[0] * trial.world_size] * trial.world_size, exact=True))
        assert judged.cause is None, (trial.label, judged.cause)
        if number in BEST:
            assert judged.usage[-1].measured == pytest.approx(judged.usage[-1].allowed / BEST[number], rel=1e-4)


@BY_NUMBER
def test_what_runs_on_a_rank_is_a_function_of_on_rank_and_nothing_else_is_sent_there(asked):
    module = importlib.import_module(asked.run.__module__)
    assert module.__name__ == "course_lib.grading.on_rank" or Path(module.__file__).name == "on_rank.py"
    assert getattr(module, asked.run.__name__) is asked.run
    text = text_for_ranks(module.__name__)
    assert text is None or text == Path(module.__file__).read_text(encoding="utf-8")
    assert all(importlib.util.find_spec(module) for module in asked.imports)


@BY_NUMBER
def test_whoever_asks_how_it_is_judged_hears_trials_budget_and_terms_and_no_answer(asked):
    said = " ".join(explain(asked).split())
    trials, terms = asked.trials(SEED), rows(SOLUTIONS[int(asked.number.partition(".")[0])], "term", asked.number)
    told = [asked.budget, *(row.says for row in terms), *(trial.label for trial in trials)]
    assert [text for text in told if " ".join(text.split()) not in said] == []
    source = solution_cell(SOLUTIONS[int(asked.number.partition(".")[0])], asked.number)
    code = [*source.partition("### BEGIN SOLUTION")[2].splitlines(), *(row.edit[1] for row in terms)]
    assert len(terms) >= 2 and not [line for line in map(str.strip, code) if len(line) > 12 and line in said]
    if isinstance(asked, NumberExercise):
        own = [line for line in explain(asked).splitlines() if line.startswith(("  numbers", "  points", "  time"))]
        expected = [describe(asked.solve(*trial.inputs[0])) for trial in trials[1:]]
        assert [number for number in expected if len(number) > 3 and any(number in line for line in own)] == []


@pytest.mark.ci
@pytest.mark.sweep("name", few=["06_zero"], all=sorted({*CHAPTERS.values()} - {"02_collectives"}),
                   words="the solutions and stubs of 1 chapter of 9, for a class; test_nbgrader.py has chapter 2")
def test_a_class_gets_full_marks_for_the_solutions_and_nothing_for_stubs(name):
    for folder, kind, words in (("solutions", "stream", "correct"), ("exercises", "error", "not written yet")):
        notebook = nbformat.read(ROOT / folder / name / f"{name}.ipynb", as_version=4)
        graded, _ = TrustedGrade(isolation=ISOLATION, seed=6, time_limit_s=60.0).preprocess(notebook, {})
        outputs = [cell.outputs[0] for cell in graded.cells if cell.cell_type == "code" and cell.outputs]
        assert [output.output_type for output in outputs] == [kind] * len(exercises_of(int(name[:2]))), outputs
        assert all(words in (output.get("text") or output.get("ename")) for output in outputs)
