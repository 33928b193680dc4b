"""Ranks that stay, each with a GPU or all with one: what they hold lies there, and an error costs none of it."""

import pytest
import torch
import torch.distributed as dist

from course_lib.runtime import Deadlock, RankFailed, start_ranks
from tests.pretend.needed import built  # noqa: F401  built is a fixture
from tools.harness.pretend.hook import pretended
from tools.harness.pretend.modes import MODES

pytestmark = pytest.mark.ci
SUM = "x = torch.ones(3) + dist.get_rank()\ndist.all_reduce(x)\nx.device.type, x.tolist()"
SCOPE = {"torch": torch, "dist": dist}


@pytest.mark.parametrize(("mode", "world_size", "lies_on"), [
    ("nccl", 2, "gpu"), ("gloo-cuda", 2, "gpu"), ("any", 2, "gpu"), ("laptop", 1, "gpu"), ("laptop", 2, "cpu")])
def test_ranks_that_stay_hold_tensors_of_their_device_and_go_on_after_an_error_or_a_hang(mode, world_size, lies_on):
    total = float(sum(1 + rank for rank in range(world_size)))
    summed = dict.fromkeys(range(world_size), f"('{lies_on}', {[total] * 3})")
    with pretended(MODES[mode]), start_ranks(world_size) as team:
        assert team.run_cell(SUM, scope=SCOPE) == summed
        assert [x.device.type for x in team.pull("x")] == ["cpu"] * world_size
        team.push(pushed=torch.ones(2))
        assert team[world_size - 1].eval("pushed.device.type") == lies_on
        with pytest.raises(RankFailed, match="All ranks live"):
            team.run_cell("if dist.get_rank() == dist.get_world_size() - 1:\n    raise ValueError('no')\n"
                          "dist.all_reduce(x)")
        assert team.run_cell(SUM) == summed
        assert team.snapshot()[0]["by_kind"]["other"] == 20
        if mode != "laptop":
            with pytest.raises(Deadlock, match="All ranks live"):
                team.run_cell("if dist.get_rank():\n    dist.barrier()")
            assert len(team.pull("x")) == world_size and team.run_cell(SUM) == summed
