"""Chapter 4: the loss is that of the whole model in one process."""

import torch
import torch.distributed as dist
from torch import nn

from course_lib import pipeline_parallel
from course_lib.runtime import device
from tests.pretend.trials.register import trial
from tests.pretend.trials.training import rows

SCHEDULES = ("gpipe", "one_f_one_b", "zb_h1", "zb_v", "dualpipe_v")


@trial("pipeline_parallel", *SCHEDULES)
def pipeline(name: str) -> None:
    n = dist.get_world_size()
    with torch.device("cpu"):
        torch.manual_seed(0)
        whole = nn.Sequential(*(nn.Linear(6, 6) for _ in range(2 * n))).double()
    schedule = getattr(pipeline_parallel, name)(n, 2 * n)
    stages = pipeline_parallel.partition(whole, schedule.num_stages)
    own = [stages[stage].to(device()) for stage in schedule.stages[dist.get_rank()]]
    inputs = rows(0)[:8]
    loss = pipeline_parallel.PipelineParallel(own, schedule, None, nn.functional.mse_loss).step(
        inputs.to(device()), inputs.flip(0).to(device()))
    with torch.device("cpu"):
        alone = nn.functional.mse_loss(whole.cpu()(inputs), inputs.flip(0))
    assert abs(loss.item() - alone.item()) < 1e-12, (loss, alone)
