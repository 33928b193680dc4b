"""Ranks that stay, each with a GPU or all with one: what they hold lies there, and an error costs none of it."""

import pytest
import torch
import torch.distributed as dist

from course_lib.runtime import RankFailed, start_ranks
from tests.pretend.needed import built  # noqa: F401  built is a fixture
from tools.harness.pretend.hook import pretended
from tools.harness.pretend.modes import MODES

SUM = "x = torch.ones(3) + dist.get_rank()\ndist.all_reduce(x)\nx.device.type, x.tolist()"


@pytest.mark.parametrize("mode", ["nccl", "gloo-cuda"])
def test_ranks_that_stay_hold_tensors_of_their_gpu_and_go_on_after_an_error(mode):
    scope = {"torch": torch, "dist": dist}
    with pretended(MODES[mode]), start_ranks(2) as team:
        assert team.run_cell(SUM, scope=scope) == dict.fromkeys(range(2), "('gpu', [3.0, 3.0, 3.0])")
        assert [x.device.type for x in team.pull("x")] == ["cpu", "cpu"]
        team.push(pushed=torch.ones(2))
        assert team[1].eval("pushed.device.type") == "gpu"
        with pytest.raises(RankFailed, match="All ranks live"):
            team.run_cell("if dist.get_rank():\n    raise ValueError('no')\ndist.all_reduce(x)")
        assert team.run_cell(SUM) == dict.fromkeys(range(2), "('gpu', [3.0, 3.0, 3.0])")
        assert team.snapshot()[0]["by_kind"]["other"] == 20
