"""What stands beside an advice: errors of runs that were not fitted, of its own kind or the nearest wider one."""

import re

import pytest

from course_lib.facts import model, published_rows
from course_lib.hybrid_parallel.layout import ParallelLayout
from course_lib.planner import NoRun, cluster, error_of, estimate, find_software
from course_lib.planner.compare import FEWEST
from course_lib.planner.rows import FITS, describe, distance, nearest_runs, unfitted_runs

FITTED_ROWS = {row["id"] for row in published_rows("calibration")}


def test_no_row_that_constants_were_fitted_on_is_among_the_errors_or_named():
    runs = unfitted_runs()
    assert not FITTED_ROWS & {run.row["id"] for run in runs}
    assert len(runs) == sum(row["metric"] != FITS for row in published_rows("visible"))


NO_RUN = "(no run|too few runs) like this: .*"


@pytest.mark.parametrize("trained, device, layout, how, told", [
    # too few runs of a kind are widened; a job larger than all of its kind is told so; a device that nobody published
    ("Llama 2 70B", "A100", "tp8,pp8,zero1", {}, r".*all software on Ampere, up to 512 devices"),
    ("Llama 3 8B", "V100", "dp16,tp4", {"software": find_software("Megatron-LM 2021"), "precision": "fp16",
                                        "flash": False}, ".*none on more than 8 devices$"),
    *(("Llama 3 8B", device, "dp64", {}, f"no run like this: none on {device}; a step of your own tells more")
      for device in ("TPU v5p", "TPU v5e", "TPU v4")),
    # tensor parallelism across nodes is not vouched for by another software
    ("Llama 3 405B", "H100", "dp256,pp8,tp8", {}, f"(?!{NO_RUN})"),
    ("Llama 3 405B", "H100", "dp128,pp8,tp16", {}, f"{NO_RUN}tensor parallelism across nodes"),
    ("Llama 3 8B", "H100", "dp4,tp16", {"software": find_software("nanotron 2025")},
     f"(?!{NO_RUN}).*nanotron.*tensor parallelism across nodes"),
    # no error of 16 bits stands beside 8 bits, nor one of dense models beside experts
    ("Llama 3 70B", "H100", "dp2,pp8,tp4", {"precision": "fp8"}, ".*8- or 4-bit products"),
    ("Mixtral 8x7B", "H100", "dp8,ep8", {}, ".*experts")])
def test_beside_an_estimate_stands_the_error_of_its_own_kind_or_none(trained, device, layout, how, told):
    layout = ParallelLayout.from_string(layout)
    error = error_of(estimate(model(trained), cluster(device, layout.world_size), layout, 2048, **how).job)
    assert re.match(told, str(error), re.DOTALL), error
    assert isinstance(error, NoRun) or error.num_rows >= FEWEST


# The runs that are named

def test_a_run_is_nearest_to_itself_fast_or_slow_of_its_step_and_said_in_words_with_what_was_assumed():
    runs = unfitted_runs()
    for run in runs[::20]:
        assert distance(run.job, nearest_runs(run.job, runs)[0].job) == 0.0
        assert distance(run.job, runs[0].job) == distance(runs[0].job, run.job)
    for run in runs:
        more_is_faster = not run.row["metric"].startswith("step time")
        assert run.faster == ((run.error > 0) == more_is_faster) or run.error == 0
    llama = next(run for run in runs if run.row["id"] == "Llama3-16k-131k")
    assert describe(llama.job).startswith("Llama 3 405B on 16,384 H100, tp8 cp16 pp16 v8") and "v assumed" in str(llama)
