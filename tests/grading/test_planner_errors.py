"""The exercises of chapter 10 about the planner's errors: each trial says one thing, and clearly."""

import math
from itertools import product

import pytest

from course_lib.facts import model, published_rows
from course_lib.grading.exercise import SentBytes
from course_lib.grading.judges.planner import causes, leaks, missing, reading
from course_lib.grading.judges.planner.published import CAUSES, dense_runs
from course_lib.hybrid_parallel.layout import ParallelLayout
from course_lib.planner.candidates import with_zero
from course_lib.planner.cluster import cluster
from course_lib.planner.estimate import estimate, estimate_job
from tools.solutions import SOLUTIONS, names_of

NOTHING = SentBytes([[0]], exact=True)
ASKED = (reading.ReadPlans(), leaks.FindLeaks(), causes.WrongTerm(), missing.MissingTerm())
EACH = pytest.mark.parametrize("asked", ASKED, ids=lambda it: it.number)
SEEDS = range(6)


def judge_answer(asked, trial, answer):
    return asked.judge(trial, [answer], NOTHING)


@EACH
@pytest.mark.parametrize("seed", SEEDS)
def test_the_solution_is_right_at_every_seed(asked, seed):
    function = names_of(SOLUTIONS[10])[asked.function]
    for trial in asked.trials(seed):
        assert judge_answer(asked, trial, asked.run(function, trial.inputs[0])).cause is None


@EACH
@pytest.mark.parametrize("odd", [
    None, "tp", [], {}, 3, [None], [["best", 1]], [["best"]], ["tp", -1.0], ["tp", "2"], ["tp", math.inf],
    ["tp", math.nan], [math.nan], [-1.0], [[]], ["a", "b", "c", "e", "e"]])
def test_odd_answers_are_refused_in_words(asked, odd):
    assert judge_answer(asked, asked.trials(0)[0], odd).cause


@EACH
def test_drawn_trials_differ_from_seed_to_seed(asked):
    assert len({repr(asked.trials(seed)[-1].inputs) for seed in SEEDS}) > 1


# 10.2

def test_every_word_is_the_answer_of_some_plan():
    words = {word for trial in ASKED[0].trials(0) for word, _ in ASKED[0].solve(*trial.inputs[0])}
    assert words >= {"best", "tie", "ZeRO-1", "ZeRO-2", "ZeRO-3", "too large", "tp", "bubble", "matmul"}


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_said_of_a_plan_is_said_of_numbers_a_per_mille_off_too(seed):
    for trial in ASKED[0].trials(seed)[1:]:
        plans, limit, runs = trial.inputs[0]
        said = ASKED[0].solve(*trial.inputs[0])
        for off, place in product((0.999, 1.001), range(len(plans))):
            moved = [plan | {"memory": {kind: size * off for kind, size in plan["memory"].items()}} if at == place
                     else plan for at, plan in enumerate(plans)]
            assert ASKED[0].solve(moved, limit, runs) == said


def test_zero_divides_in_the_exercise_what_it_divides_in_the_planner():
    layout = ParallelLayout(dp=32, tp=8, pp=1, zero_stage=1)
    found = estimate(model("Llama 3 70B"), cluster("H100", 256), layout, 512)
    plan = reading.shown_plan(found)
    second = sum(estimate_job(with_zero(found.job, 2)).memory.values()) / reading.GIB
    assert reading.held_by(plan, 2) == pytest.approx(second, rel=0.01)


# 10.6

def test_a_table_without_a_leak_and_tables_with_each_kind_are_asked_about():
    tables = [trial.inputs[0] for trial in ASKED[1].trials(0)]
    assert [len(ASKED[1].solve(*table)) for table in tables[1:5]] == [0, 2, 2, 4]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_row_that_does_not_leak_is_like_one_that_does(seed):
    """So nobody is right who flags all rows that have anything in common."""
    for trial in ASKED[1].trials(seed)[1:]:
        rows, profiles = trial.inputs[0]
        said = ASKED[1].solve(rows, profiles)
        test = [row for row in rows if row["split"] == "test" and row["id"] not in said]
        alike = [row for row in test if any(leaks.document_of(row) == leaks.document_of(each) or leaks.same_run(
            row, each) for each in rows if each is not row)]
        assert len(alike) >= 4


def test_of_published_rows_the_rule_finds_the_readme_that_is_cited_in_two_ways():
    foundry = {row["source"].partition("@")[0].partition(" ")[0] for row in published_rows()
               if row["group"] in ("foundry", "mptA", "mptH")}
    assert foundry == {"mosaicml/llm-foundry"}


# 10.7

@pytest.mark.parametrize("seed", SEEDS)
def test_the_wrong_term_leaves_clearly_less_error_than_any_other(seed):
    for trial in ASKED[2].trials(seed)[1:]:
        planned, measured = trial.inputs[0]
        left = {(cause, factor): causes.error_left(planned, measured, cause, factor)
                for cause, factor in product(CAUSES, causes.FACTORS)}
        least, second = sorted(left.values())[:2]
        assert left[tuple(trial.hidden)] == least and second > 1.5 * least


def test_a_term_put_wrong_and_right_again_is_as_before():
    for run, cause, factor in product(dense_runs()[::9], CAUSES, causes.FACTORS):
        there = causes.put_wrong(run.seconds, cause, factor)
        assert causes.put_wrong(there, cause, 1 / factor) == pytest.approx(run.seconds)


def test_planned_and_measured_steps_are_those_of_published_rows():
    found = {run.measured for run in dense_runs()}
    for trial in ASKED[2].trials(0)[1:]:
        assert set(trial.inputs[0][1]) <= found


# 10.8

@pytest.mark.parametrize("seed", SEEDS)
def test_par_is_met_by_sound_fits_and_not_by_mistaken_terms(seed):
    for trial in ASKED[3].trials(seed)[1:]:
        fitted, unseen = trial.inputs[0]
        runs = [run | {"measured": step} for run, step in zip(unseen, trial.hidden["measured"])]
        sound, mistakes = missing.errors_of(fitted, runs)
        assert max(sound) <= trial.hidden["par"] < min(mistakes)
        assert trial.hidden["par"] < trial.hidden["before"]


def test_unseen_runs_are_no_fitted_ones_and_come_without_their_steps():
    for trial in ASKED[3].trials(0):
        fitted, unseen = trial.inputs[0]
        assert not any("measured" in run for run in unseen)
        assert not {run["measured"] for run in fitted} & set(trial.hidden["measured"])
        assert {run["v"] for run in fitted} == {1} and max(run["v"] for run in unseen) > 1
