"""gpu_day: how steps end in the table, and their order. That they run, on pretended GPUs: `.ci/run bare`."""

import subprocess
import sys
from functools import partial

from tests.tools import made_up_steps
from tools.gpu_day import __main__ as command
from tools.gpu_day import overlap
from tools.gpu_day.steps import OVER, Row, Step, rows

ENDINGS = {
    "passes": ("passed", "7 of 7"), "misses": ("not met", "6 of 7"),
    "raises": ("FAILED", "RuntimeError: no such device"), "hangs": ("FAILED", "hung: not over after 1.5 s"),
    "ends": ("passed", "still here")}


def test_a_step_ends_in_a_row_that_says_how_and_the_next_ones_run():
    heard = []
    found = list(rows(made_up_steps.steps("gpu"), 120.0, lambda step: heard.append(step.name)))
    assert {row.step: (row.result, row.figure) for row in found} == ENDINGS
    assert heard == [row.step for row in found] == [*ENDINGS]


def test_when_the_time_is_over_the_step_that_runs_is_ended_and_what_is_left_is_in_the_table_once():
    steps = made_up_steps.steps("gpu")
    found = list(rows(steps, within_s=0.5))
    assert [(row.step, row.result, row.figure) for row in found[3:]] == [(step.name, "not run", OVER)
                                                                         for step in steps[3:]]
    assert [row.step for row in found] == [step.name for step in steps]


def test_what_a_step_needs_and_the_machine_lacks_is_said_and_nothing_fails():
    (row,) = rows([Step("two", "", partial(overlap.first_step, 1, None))], 10.0)
    assert row.result == "not run" and row.figure.startswith("waits for two GPUs")


def test_what_the_course_claims_comes_first_and_only_what_compiles_or_runs_notebooks_takes_longer_than_25_s():
    steps = command.plan(command.MODULES, "gpu")
    names = [step.name for step in steps]
    first = ["fork, then a GPU", "nccl 1: all_reduce", "step, bf16, fused", "step, bf16, fused, compiled", "memory",
             "spin, LAZY", "step, bf16, written out, recompute full", "copies", "gloo-cuda, dp4", "products",
             "attention", "bf16 sums", "offload", "launches", "waiting hosts"]
    assert sorted(map(names.index, first)) == [*map(names.index, first)] and names[-1] == "notebooks"
    assert {step.name for step in steps if step.limit_s > 25} == {
        "notebooks", "torch.compile", "step, bf16, fused, compiled", "step, bf16, written out, compiled"}
    assert command.WITHIN_S <= 420


def test_the_summary_names_what_did_not_pass():
    found = [Row("a", "", "passed", "", 1.0), Row("b", "", "FAILED", "", 1.0), Row("c", "", "not run", "", 0.0)]
    assert command.summary(found) == "3 steps: 1 passed, 1 FAILED, 1 not run; look at b, c"


def test_without_a_gpu_it_says_so_in_one_sentence_and_ends_with_2(capsys, monkeypatch):
    monkeypatch.setattr("course_lib.runtime.backends.count_gpus", lambda: 0)
    assert command.main([]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and "no GPU" in said.err and "--mode pretended" in said.err


def test_it_plans_where_no_package_of_jupyter_is_installed():
    missing = ("nbformat", "nbclient", "nbval", "ipykernel", "ipywidgets", "anywidget", "IPython")
    asked = f"""
import sys
sys.modules.update(dict.fromkeys({missing!r}))  # import then raises ImportError
from tools.gpu_day.__main__ import MODULES, plan
names = [step.name for step in plan(MODULES, "gpu")]
assert len(set(names)) == len(names) and not set(names) & set(MODULES), names
print(len(names), "notebooks" in names)
"""
    found = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert found.stdout.endswith(" True\n"), found.stdout


def test_a_module_that_cannot_be_imported_is_a_step_that_fails():
    (step,) = command.plan(["tools.gpu_day.no_such_module"], "gpu")
    (row,) = rows([step], 10.0)
    assert row.result == "FAILED" and "no_such_module" in row.figure
