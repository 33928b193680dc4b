"""Tensor parallelism's messages: how many there are, what hides them, and what other jobs on the wires do to them."""

from dataclasses import replace

import pytest

from course_lib.costs.reached import crowding, measured_crowding
from course_lib.facts import Shape, published_rows
from course_lib.hybrid_parallel.layout import ParallelLayout
from course_lib.planner import cluster, step
from course_lib.planner.compare import compare, errors_of
from course_lib.planner.estimate import estimate, estimate_job
from course_lib.planner.layer import layer_pass
from course_lib.planner.rates import rates_of
from course_lib.planner.rows import job_of_row
from course_lib.planner.software import EAGER, FSDP2, FSDP2_EAGER, NANOTRON
from course_lib.planner.split_layer import entries, share_again
from course_lib.planner.work import work_of

SHAPE = Shape(32, 4096, 32, 8, 14_336, 128_256, 8192, gated=True)
ROWS = {row["id"]: row for row in published_rows()}


def job(software, tp=8, pp=1, gpus=64, recompute="none", sequence_parallel=True, between=""):
    layout = ParallelLayout(dp=gpus // tp // pp, tp=tp, pp=pp)
    return estimate(SHAPE, cluster("H100", gpus, between=between), layout, 64, recompute=recompute,
                    sequence_parallel=sequence_parallel, software=software).job


def test_matrix_by_matrix_a_layer_has_the_messages_that_a_profile_of_it_counted():
    """KempnerForge, benchmarks/profiling/13b_24gpu_profiling.md, recomputed layers: 6,420 reduce-scatters and 9,679
    all-gathers of tensor parallelism in 800 passes of a layer (as many as of attention backward).
    """
    work = work_of(job(replace(FSDP2, gathers_by_matrix=True), recompute="full"))
    entered, blocks = sum(entries(work)), len(entries(work))
    forward = entered + blocks
    assert forward * share_again(work) == pytest.approx(forward - 1)
    gathers, scatters = entered + entered + blocks, blocks + (blocks - 1) + entered
    assert (gathers, scatters) == (round(9679 / 800), round(6420 / 800)) == (12, 8)


def test_messages_that_run_beside_products_take_less_and_never_less_than_nothing():
    plain, hidden = (layer_pass(each, rates_of(each.cluster, each.software)) for each in (job(EAGER), job(NANOTRON)))
    assert 0 < hidden.backward.tp < plain.backward.tp and hidden.forward.tp == plain.forward.tp


def test_a_read_out_that_nobody_cuts_makes_the_last_stage_of_a_pipeline_longer():
    whole, cut = (estimate_job(job(replace(FSDP2_EAGER, whole_ends=whole), pp=2)).step_s for whole in (True, False))
    assert whole > cut
    alone = [estimate_job(job(replace(FSDP2_EAGER, whole_ends=whole))).step_s for whole in (True, False)]
    assert alone[0] == alone[1]


# Beside other jobs

def test_a_shared_cluster_is_slower_the_more_nodes_a_job_has_and_ends_at_three_times():
    measured = measured_crowding()
    assert measured[1] == 1 < measured[2] < 1.3 and all(2 < measured[nodes] < 3.3 for nodes in (4, 8, 16, 32))
    assert all(crowding(nodes) == measured[nodes] for nodes in measured) and crowding(64) == measured[32]
    assert measured[2] < crowding(3) < measured[4]


def test_only_messages_between_nodes_of_a_cloud_meet_other_jobs():
    own, cloud = (rates_of(cluster("H100", 512, between=wire), NANOTRON) for wire in ("", "EFA v2"))
    assert own.crowding == 1 and cloud.crowding == pytest.approx(crowding(64))
    inside = [layer_pass(job(NANOTRON, gpus=512, between=wire), rates).forward.tp
              for wire, rates in (("", own), ("EFA v2", cloud))]
    assert inside[0] == inside[1]
    across = [layer_pass(job(NANOTRON, tp=16, gpus=512, between=wire), rates).forward.tp
              for wire, rates in (("", own), ("EFA v2", cloud))]
    assert across[1] > 2 * across[0]


def test_gradients_do_not_meet_other_jobs(monkeypatch):
    rows = [row for row in ROWS.values() if row["group"] == "ultra" and row["tp"] <= 8 and row["pp"] == 1
            and row["dp"] > 1 and row["gpus"] > 8 and row["metric"].startswith("tokens")]
    without = errors_of(compare(rows)).median
    plain = step.message_seconds

    def crowded(job, rates, *given):
        return rates.crowding * plain(job, rates, *given)

    monkeypatch.setattr(step, "message_seconds", crowded)
    assert len(rows) >= 20 and errors_of(compare(rows)).median > 2 * without


def test_without_other_jobs_nearly_all_runs_split_across_nodes_would_be_said_to_be_faster_than_they_were():
    rows = [row for row in ROWS.values() if row["group"] == "ultra" and row["tp"] > 8
            and row["metric"].startswith("tokens")]
    assert len(rows) == 8
    assert max(abs(each.error) for each in compare(rows)) < 0.3
    alone = []
    for row in rows:
        of = job_of_row(row)
        rates = rates_of(of.cluster, of.software)
        alone.append(layer_pass(of, replace(rates, crowding=1.0)).total / layer_pass(of, rates).total)
    assert sum(share < 0.7 for share in alone) >= 6
