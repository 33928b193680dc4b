"""What is posted when, from which memory, and over which groups: as torch.distributed is asked for it, and not as the
mailbox says. Over gloo, too, the mailbox does what it does over NCCL, once it is told that groups work in order.
"""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from course_lib.pipeline_parallel import SCHEDULES, PipelineParallel, mailbox
from course_lib.pipeline_parallel.validate import needs
from course_lib.runtime import device, launch
from course_lib.runtime.torch_private import list_groups
from tests.pipeline_parallel.cases import WIDTH
from tools.harness.pretend import build
from tools.harness.pretend.hook import pretended
from tools.harness.pretend.modes import MODES

P, M = 4, 8


def observe():
    """By schedule: (what this rank asked for while the pipeline was made and in each of three steps, of which the last
    has other shapes; the ranks of the groups that it made).
    """
    mailbox.works_off_in_order = lambda me, device: True
    log, found = [], {}

    def observed(kind, method):
        def call(group, tensors, peer, tag):
            log.append((kind, dist.get_process_group_ranks(group)[peer], tensors[0].device.type))
            return method(group, tensors, peer, tag)

        return call

    for kind in ("send", "recv"):
        setattr(dist.ProcessGroup, kind, observed(kind, getattr(dist.ProcessGroup, kind)))
    for name, make in SCHEDULES.items():
        schedule, before, phases = make(P, M), list_groups(), []
        log.clear()
        stages = [nn.Linear(WIDTH, WIDTH) for _ in schedule.stages[dist.get_rank()]]
        pipeline = PipelineParallel(stages, schedule, None, nn.functional.mse_loss)
        phases.append(list(log))
        for kind, work in pipeline.work.items():
            pipeline.work[kind] = lambda action, stage, message, work=work: (
                log.append(("action", action.kind, None)), work(action, stage, message))[1]
        for rows in (M, M, 2 * M):
            log.clear()
            pipeline.step(torch.ones(rows, WIDTH), torch.ones(rows, WIDTH))
            phases.append(list(log))
        found[name] = phases, [dist.get_process_group_ranks(group) for group in list_groups() if group not in before]
    return device().type, found


def receives_before_actions(log):
    """How many receives were posted between each action and the one before it; none comes before a send there."""
    stretches = "".join({"send": "s", "recv": "r", "action": " "}[kind] for kind, *_ in log).split(" ")
    return [stretch.count("r") for stretch in stretches], all("rs" not in stretch for stretch in stretches)


@pytest.mark.parametrize("mode", ["cpu", pytest.param("nccl", marks=[pytest.mark.ci, pytest.mark.skipif(
    build.why_not() is not None, reason="no pretended GPU here")])])
def test_a_first_step_posts_nothing_ahead_and_goes_through_the_hosts_later_ones_post_two_over_groups_of_two(mode):
    with pretended(MODES[mode]):
        ranks = launch(observe, world_size=P, timeout=120)
    for name, make in SCHEDULES.items():
        schedule = make(P, M)
        for rank, (own, found) in enumerate(ranks):
            (making, first, later, other), groups = found[name]
            peers = {rank - 1, rank + 1} & set(range(P))
            if name == "interleaved 1F1B":  # a ring: the last stage of one round sends to the first of the next
                peers = {(rank - 1) % P, (rank + 1) % P}
            assert sorted(groups) == sorted([sorted((rank, peer)) for peer in peers] * 2), name
            assert sorted(making) == sorted((kind, peer, own) for peer in peers for kind in ("send", "recv")), name
            for step in (first, other):
                assert {place for kind, _, place in step if kind != "action"} == {"cpu"}
                posted, sends_come_first = receives_before_actions(step)
                needed = [any(schedule.where(need.stage)[0] != rank
                              for need in needs(action, schedule.stages[rank][action.chunk], schedule.num_stages))
                          for action in schedule.actions[rank]]
                assert sends_come_first and all(need or not count for need, count in zip([*needed, False], posted))
                # A message, and the shape before the first one over a boundary; in a V a neighbour sends from both of
                # its stages, and what it has sent before is received before.
                assert max(posted) <= 2 or name in ("ZB-V", "DualPipe-V"), (name, rank, posted)
            assert {place for kind, _, place in later if kind != "action"} == {own}
            if name == "1F1B":  # two from each neighbour, and the next one as soon as the first is needed
                assert next(filter(None, receives_before_actions(later)[0])) == [2, 5, 5, 3][rank]
