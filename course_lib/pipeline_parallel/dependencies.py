"""What an action needs, what it leaves behind for whom, and in which order a schedule can run at all.

    F on stage s   needs the activations of stage s - 1                        leaves the activations of s
    B, I on s      need the activations of s and the gradient of s + 1         leave the gradient of s
    W on s         needs what I left on s                                      leaves nothing that anybody waits for

Sends never block: what a rank has sent lies in a buffer until the receiver takes it by name, in whatever order. So a
schedule gets stuck only where actions wait for each other in a circle, and where a thing never comes.

`find_circle` is what would happen if sends did block, each until its receiver comes to take it, as large messages do
where nothing is buffered (a plain send of most libraries, NCCL's on its stream). A rank then receives what an action
needs, runs it, and sends what it made before it does anything else. GPipe survives that; in 1F1B two neighbours meet
that both send first, one forwards and one back. So real pipelines post their sends together with their receives
(batch_isend_irecv), or leave them pending, as PipelineParallel does.
"""

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

from course_lib.pipeline_parallel.schedules import Action, Schedule


class Result(NamedTuple):
    """What travels between stages: the "activations" that leave a stage, the "gradient" that leaves it backwards."""

    what: str
    microbatch: int
    stage: int

    def __str__(self) -> str:
        return f"{self.what} of micro-batch {self.microbatch} from stage {self.stage}"


def needs(action: Action, stage: int, num_stages: int) -> list[Result]:
    """What has to be there before `action` starts on `stage`, beside the end of its rank's action before."""
    i = action.microbatch
    if action.kind == "F":
        return [Result("activations", i, stage - 1)] if stage else []
    if action.kind == "W":
        return [Result("gradient", i, stage)]
    return [Result("activations", i, stage), *([Result("gradient", i, stage + 1)] if stage + 1 < num_stages else [])]


def leaves(action: Action, stage: int) -> Result | None:
    """The result of `action` on `stage` that other ranks may wait for; None where it makes none."""
    if action.kind == "W":
        return None
    return Result("activations" if action.kind == "F" else "gradient", action.microbatch, stage)


@dataclass(frozen=True)
class StageMessage:
    """`content` on its way from `source` to `dest`, places in the group.

    `sent_at` and `needed_at` are positions in the actions of the one and of the other. `number` counts the messages
    from this source to this dest.
    """

    content: Result
    source: int
    dest: int
    sent_at: int
    needed_at: int
    number: int

    @property
    def boundary(self) -> int:
        """The stage in front of the boundary that it crosses. Gradients look like the activations there."""
        return self.content.stage - (self.content.what == "gradient")


def messages_of(schedule: Schedule) -> list[StageMessage]:
    """Every message of a valid schedule; those of one source in the order in which it sends them."""
    made: dict[Result, tuple[int, int]] = {}
    for rank, position, action in schedule.positions():
        made[leaves(action, schedule.stages[rank][action.chunk])] = rank, position
    transfers = []
    for rank, position, action in schedule.positions():
        for content in needs(action, schedule.stages[rank][action.chunk], schedule.num_stages):
            source, sent_at = made[content]
            if source != rank:
                transfers.append((source, sent_at, rank, position, content))
    counts: Counter[tuple[int, int]] = Counter()
    messages = []
    for source, sent_at, dest, needed_at, content in sorted(transfers):
        messages.append(StageMessage(content, source, dest, sent_at, needed_at, counts[source, dest]))
        counts[source, dest] += 1
    return messages


@dataclass(frozen=True)
class Walk:
    """All actions in an order in which they can run, which does not hang on costs.

    done: (rank, action). sources: for each of them, the positions in `done` of what it needs. stuck: for each rank that
    cannot go on, its action and what is missing.
    """

    done: list[tuple[int, Action]]
    sources: list[list[int]]
    stuck: dict[int, tuple[Action, Result]]


def walk(schedule: Schedule) -> Walk:
    """Let every rank go on as long as what it needs is there. Takes schedules with gaps, also those not finished."""
    there: dict[Result, int] = {}
    waiting: dict[Result, list[int]] = {}
    walked = Walk([], [], {})
    position = [0] * schedule.num_ranks
    ready = list(range(schedule.num_ranks))[::-1]
    # In whatever order ranks are asked, the same actions run: one that runs takes nothing from another.
    while ready:
        rank = ready.pop()
        walked.stuck.pop(rank, None)
        for action in schedule.actions[rank][position[rank]:]:
            stage = schedule.stages[rank][action.chunk]
            needed = needs(action, stage, schedule.num_stages)
            missing = next((need for need in needed if need not in there), None)
            if missing:
                walked.stuck[rank] = action, missing
                # The rank is looked at again when this result comes, so no rank is asked twice in vain.
                waiting.setdefault(missing, []).append(rank)
                break
            position[rank] += 1
            result = leaves(action, stage)
            if result:
                there[result] = len(walked.done)
                ready.extend(waiting.pop(result, []))
            walked.done.append((rank, action))
            walked.sources.append([there[need] for need in needed])
    return walked


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
