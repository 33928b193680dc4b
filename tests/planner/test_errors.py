"""What stands beside an advice: errors of runs that were not fitted, of its own kind or the nearest wider one."""

import pytest

from course_lib.facts import model, published_rows
from course_lib.hybrid_parallel.layout import ParallelLayout
from course_lib.planner import MeasuredError, NoRun, cluster, error_of, errors_by_kind, estimate, find_software
from course_lib.planner.errors import FEWEST
from course_lib.planner.rows import FITS
from course_lib.planner.runs import describe, distance, nearest_runs, unfitted_runs

FITTED_ROWS = {row["id"] for row in published_rows("calibration")}


def job(name, device, layout, rows=2048, **more):
    return estimate(model(name), cluster(device, layout.world_size), layout, rows, **more).job


def test_no_row_that_constants_were_fitted_on_is_among_the_errors_or_named():
    runs = unfitted_runs()
    assert not FITTED_ROWS & {run.row["id"] for run in runs}
    assert len(runs) == sum(row["metric"] != FITS for row in published_rows("visible"))
    assert sum(each.num_rows for each in errors_by_kind().values()) == len(runs)


def test_too_few_runs_of_a_kind_are_widened_and_a_job_larger_than_all_of_its_kind_is_told_so():
    error = error_of(job("Llama 2 70B", "A100", ParallelLayout(tp=8, pp=8, zero_stage=1)))
    assert error.kind == "all software on Ampere, up to 512 devices" and error.num_rows >= FEWEST
    large = job("Llama 3 8B", "V100", ParallelLayout(dp=16, tp=4), software=find_software("Megatron-LM 2021"),
                precision="fp16", flash=False)
    assert str(error_of(large)).endswith("none on more than 8 devices")


@pytest.mark.parametrize("device", ["TPU v5p", "TPU v5e", "TPU v4"])
def test_beside_a_device_that_nobody_published_stands_no_number(device):
    error = error_of(job("Llama 3 8B", device, ParallelLayout(dp=64)))
    assert isinstance(error, NoRun) and str(error) == f"no run like this: none on {device}"


def test_tensor_parallelism_across_nodes_is_not_vouched_for_by_another_software():
    inside, across = (error_of(job("Llama 3 405B", "H100", ParallelLayout(dp=2048 // tp, tp=tp, pp=8)))
                      for tp in (8, 16))
    assert isinstance(inside, MeasuredError)
    assert isinstance(across, NoRun) and "tensor parallelism across nodes" in str(across)
    nanotron = find_software("nanotron 2025")
    own = error_of(job("Llama 3 8B", "H100", ParallelLayout(dp=4, tp=16), software=nanotron))
    assert own.kind.startswith("nanotron") and own.kind.endswith("tensor parallelism across nodes")


def test_no_error_of_16_bits_stands_beside_8_bits_nor_one_of_dense_models_beside_experts():
    eight = job("Llama 3 70B", "H100", ParallelLayout(dp=2, tp=4, pp=8), precision="fp8")
    experts = job("Mixtral 8x7B", "H100", ParallelLayout(dp=8, ep=8))
    for each, words in ((eight, "8-bit products"), (experts, "experts")):
        error = error_of(each)
        assert isinstance(error, NoRun) or error.kind.endswith(words), error
        assert words in str(error)


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
