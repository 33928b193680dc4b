"""What an action needs, what it leaves behind for whom, and in which order a schedule can run at all.

    F on stage s   needs the activations of stage s - 1                        leaves the activations of s
    B, I on s      need the activations of s and the gradient of s + 1         leave the gradient of s
    W on s         needs what I left on s                                      leaves nothing that anybody waits for

Sends never block: what a rank has sent lies in a buffer until the receiver takes it by name, in whatever order. So a
schedule gets stuck only where actions wait for each other in a circle, and where a thing never comes.
"""

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

from course_lib.pipeline_parallel.actions import Action, Schedule


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
