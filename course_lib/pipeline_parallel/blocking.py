"""What would happen if sends blocked: if each returned only once its receiver had come to take it.

Large messages do just that where nothing is buffered: a plain send of most libraries, and NCCL's on its stream. A rank
then receives what an action needs, runs it, and sends what it made before it does anything else. GPipe survives that;
in 1F1B two neighbours meet that both send first, one forwards and one back. So real pipelines post their sends together
with their receives (batch_isend_irecv), or leave them pending, as PipelineParallel does.
"""

from typing import NamedTuple

from course_lib.pipeline_parallel.actions import Action, Schedule
from course_lib.pipeline_parallel.dependencies import Result, messages_of


class BlockingCall(NamedTuple):
    """A send or a receive of a rank, and the action it belongs to."""

    op: str
    result: Result
    partner: int
    position: int
    action: Action

    def describe(self, rank: int) -> str:
        """What `rank` is doing in this call, in words."""
        what = f"the {self.result.what} of micro-batch {self.result.microbatch}"
        if self.op == "send":
            return f"rank {rank} has done {self.action} and sends {what} to rank {self.partner}"
        return f"rank {rank} waits at {self.action} for {what} from rank {self.partner}"


def transfers_of(schedule: Schedule) -> list[list[BlockingCall]]:
    """Every rank's sends and receives, in the order in which it makes them."""
    of_ranks: list[list[BlockingCall]] = [[] for _ in schedule.actions]
    for message in messages_of(schedule):
        for op, rank, partner, position in (("send", message.source, message.dest, message.sent_at),
                                            ("receive", message.dest, message.source, message.needed_at)):
            action = schedule.actions[rank][position]
            of_ranks[rank].append(BlockingCall(op, message.content, partner, position, action))
    # An action's receive stands before it and its send behind: with sends that block, this order decides.
    return [sorted(transfers, key=lambda transfer: (transfer.position, transfer.op == "send"))
            for transfers in of_ranks]


def find_circle(schedule: Schedule) -> list[tuple[int, BlockingCall]]:
    """The (rank, call) that wait for each other in a circle, in its order; empty where all can be done.

    Takes legal schedules.
    """
    left = [mine[::-1] for mine in transfers_of(schedule)]
    ready = list(range(schedule.num_ranks))
    while ready:
        rank = ready.pop()
        if not left[rank]:
            continue
        call, other = left[rank][-1], left[rank][-1].partner
        # A message passes only when both of its ends have come to it.
        theirs = left[other][-1] if left[other] else None
        if theirs and theirs.partner == rank and theirs.result == call.result:  # the one sends what the other awaits
            left[rank].pop()
            left[other].pop()
            ready += [other, rank]
    # Each rank that is left waits for one partner, so a walk from partner to partner ends in a circle.
    rank = next((rank for rank, mine in enumerate(left) if mine), None)
    path: list[int] = []
    while rank is not None and rank not in path:
        path.append(rank)
        rank = left[rank][-1].partner
    return [(waiting, left[waiting][-1]) for waiting in path[path.index(rank):]] if path else []
