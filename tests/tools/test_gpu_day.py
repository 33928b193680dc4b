"""gpu_day: how steps end in the table."""

import pytest

from tests.tools import made_up_ruin, made_up_steps
from tools.gpu_day import __main__ as command
from tools.gpu_day.runner import OVER, planned, rows
from tools.gpu_day.steps import Row

MADE_UP = made_up_steps.__name__


@pytest.fixture(scope="module")
def made_up():
    """step -> its row, of one run of the made-up steps."""
    heard = []
    found = list(rows(planned([MADE_UP], "gpu"), "gpu", 120.0, lambda step: heard.append(step.name)))
    assert heard == [row.step for row in found] == [step.name for step in made_up_steps.steps("gpu")]
    return {row.step: row for row in found}


def test_a_step_passes_with_its_figure_and_one_whose_figure_is_not_as_expected_says_it_too(made_up):
    assert (made_up["passes"].result, made_up["passes"].figure) == ("passed", "7 of 7")
    assert (made_up["misses"].result, made_up["misses"].figure) == ("not met", "6 of 7")


def test_a_step_that_raises_is_a_row_with_the_error_in_one_line(made_up):
    assert (made_up["raises"].result, made_up["raises"].figure) == ("FAILED", "RuntimeError: no such device")


def test_a_step_that_hangs_or_dies_is_a_row_that_says_how_far_it_came_and_the_next_ones_run(made_up):
    assert made_up["hangs"].result == made_up["dies"].result == "FAILED"
    assert made_up["hangs"].figure == "hung: nothing happened for 1.5 s, at cell 00[3]"
    assert made_up["dies"].figure == "gave no result: its process was killed by SIGKILL"
    assert made_up["ends"].result == "passed"


def test_steps_whose_process_ends_before_the_first_one_are_rows_all_at_once():
    found = list(rows(planned([made_up_ruin.__name__], "gpu"), "gpu", 120.0))
    assert [(row.step, row.figure) for row in found] == [
        (name, "gave no result: its process ended with exit code 7") for name in ("one", "another")]


def test_when_the_time_is_over_what_is_left_is_not_run_but_in_the_table():
    found = list(rows(planned([MADE_UP], "gpu"), "gpu", within_s=0.0))
    assert {(row.result, row.figure) for row in found} == {("not run", OVER)} and len(found) == 6


def test_the_step_that_runs_when_the_time_is_over_is_ended(monkeypatch):
    monkeypatch.setattr(made_up_steps, "DEADLINE_S", 600.0)
    endless = [step for step in made_up_steps.steps("gpu") if step.name == "hangs"]
    (found,) = rows({MADE_UP: endless}, "gpu", within_s=1.0)
    assert found.result == "not run" and found.figure.startswith(OVER)


def test_the_summary_names_what_did_not_pass():
    found = [Row("a", "", "passed", "", 1.0), Row("b", "", "FAILED", "", 1.0), Row("c", "", "not run", "", 0.0)]
    assert command.summary(found) == "3 steps: 1 passed, 1 FAILED, 1 not run; look at b, c"


def test_without_a_gpu_it_says_so_in_one_sentence_and_ends_with_2(capsys, monkeypatch):
    monkeypatch.setattr("course_lib.runtime.backends.count_gpus", lambda: 0)
    assert command.main([]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and "no GPU" in said.err and "--mode pretended" in said.err
