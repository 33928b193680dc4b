"""Pipelines on pretended GPUs: links over NCCL in groups of any ranks, and delays that hold up the GPU's own time."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from course_lib.pipeline_parallel import PipelineParallel, measured_step, one_f_one_b, partition, zb_v
from course_lib.pipeline_parallel.dependencies import leaves, needs
from course_lib.runtime import record_timeline, sleep, span
from tests.pretend import needed
from tests.pretend.needed import built  # noqa: F401  a fixture

pytestmark = pytest.mark.ci


def on_gpus(function, *arguments, world_size=4):
    return needed.on("nccl", function, *arguments, world_size=world_size)


def stages_of(schedule):
    layers = partition(nn.Sequential(*(nn.Linear(6, 6) for _ in range(schedule.num_stages))), schedule.num_stages)
    return [layers[stage] for stage in schedule.stages[dist.get_rank()]]


@pytest.mark.parametrize("make", [one_f_one_b, zb_v])
def test_delayed_actions_last_as_told_and_begin_when_the_gpu_has_what_they_need(make):
    schedule, delay = make(3, 4), {"F": 0.01, "I": 0.01, "W": 0.005}

    def body():
        pipeline = PipelineParallel(stages_of(schedule), schedule, None, nn.functional.mse_loss, delay)
        with record_timeline():
            pipeline.step(torch.ones(4, 6), torch.ones(4, 6))

    found = measured_step(schedule, on_gpus(body, world_size=3).timeline)
    done = {leaves(box.action, box.stage): box.end for box in found.timeline}
    for box in found.timeline:
        assert box.duration >= (delay | {"B": 0.015})[box.action.kind], box
        assert all(done[need] <= box.start for need in needs(box.action, box.stage, schedule.num_stages)), box


def test_a_rank_that_sleeps_holds_up_the_next_collective_and_sleeps_when_the_last_one_is_over():
    def body():
        value = torch.ones(1)
        with record_timeline():
            for turn in range(2):
                with span("turn"):
                    if turn == dist.get_rank():
                        sleep(0.05)
                dist.all_reduce(value)

    timeline = on_gpus(body, world_size=2).timeline
    slept = [[event for event in timeline.by_rank(rank).events if event.name == "turn"][rank] for rank in range(2)]
    assert slept[0].end_s <= slept[1].start_s
