"""Tensor parallelism's messages: how many there are, what hides them, and what other jobs on the wires do to them."""

from dataclasses import replace

import pytest

from course_lib.costs.links import crowding, measured_crowding
from course_lib.facts import Shape
from course_lib.hybrid_parallel.layout import ParallelLayout
from course_lib.planner import cluster
from course_lib.planner.cluster import rates_of
from course_lib.planner.constants import FSDP2, FSDP2_EAGER, NANOTRON
from course_lib.planner.estimate import estimate, estimate_job
from course_lib.planner.job import work_of
from course_lib.planner.layer import entries, layer_pass, repeated_share

SHAPE = Shape(32, 4096, 32, 8, 14_336, 128_256, 8192, gated=True)


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
    assert forward * repeated_share(work) == pytest.approx(forward - 1)
    gathers, scatters = entered + entered + blocks, blocks + (blocks - 1) + entered
    assert (gathers, scatters) == (round(9679 / 800), round(6420 / 800)) == (12, 8)


def test_a_read_out_that_nobody_cuts_makes_the_last_stage_of_a_pipeline_longer():
    for pp in (2, 1):
        whole, cut = (estimate_job(job(replace(FSDP2_EAGER, whole_ends=ends), pp=pp)).step_s for ends in (True, False))
        assert whole > cut if pp == 2 else whole == cut


# Beside other jobs

def test_a_shared_cluster_is_slower_the_more_nodes_a_job_has_and_ends_at_three_times():
    measured = measured_crowding()
    assert measured[1] == 1 < measured[2] < 1.3 and all(2 < measured[nodes] < 3.3 for nodes in (4, 8, 16, 32))
    assert all(crowding(nodes) == measured[nodes] for nodes in measured) and crowding(64) == measured[32]
    assert measured[2] < crowding(3) < measured[4]


def test_only_messages_between_nodes_of_a_cloud_meet_other_jobs():
    own, cloud = (rates_of(cluster("H100", 512, between=wire), NANOTRON) for wire in ("", "EFA v2"))
    assert own.crowding == 1 and cloud.crowding == pytest.approx(crowding(64))
    (own_inside, own_across), (inside, across) = (
        [layer_pass(job(NANOTRON, tp=tp, gpus=512, between=wire), rates).forward.tp for tp in (8, 16)]
        for wire, rates in (("", own), ("EFA v2", cloud)))
    assert inside == own_inside and across > 2 * own_across
