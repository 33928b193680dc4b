"""What an action needs before it can run, what it leaves behind, and in which order a whole schedule can run at all.

    F on stage s   needs the activations of stage s - 1                        leaves the activations of s
    B, I on s      need the activations of s and the gradient of s + 1         leave the gradient of s
    W on s         needs what I left on s                                      leaves nothing that anybody waits for

Sends never block: what a rank has sent lies in a buffer until the receiver takes it by name, in whatever order. So a
schedule gets stuck only where actions wait for each other in a circle, and where a thing never comes.
"""

from collections.abc import Sequence
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


class Block(NamedTuple):
    """Actions of a rank that run as one: almost always a single one."""

    rank: int
    actions: tuple[Action, ...]


class Source(NamedTuple):
    """Where something comes from: the action `number` of the block at `place` of a Walk."""

    place: int
    number: int


@dataclass(frozen=True)
class Walk:
    """The blocks in an order in which they can run, with the sources of what each needs; which does not hang on costs.

    stuck: for each rank that cannot go on, its block and what is missing.
    """

    done: list[Block]
    sources: list[list[Source]]
    stuck: dict[int, tuple[Block, Result]]


def walk(schedule: Schedule, lanes: Sequence[Sequence[Block]] | None = None) -> Walk:
    """Let every rank go on as long as what it needs is there. Takes schedules with gaps, also those not finished."""
    lanes = singles(schedule) if lanes is None else lanes
    num_stages = schedule.num_stages
    there: dict[Result, Source] = {}
    waiting: dict[Result, list[int]] = {}
    walked = Walk([], [], {})
    position = [0] * len(lanes)
    ready = list(range(len(lanes)))[::-1]
    while ready:
        rank = ready.pop()
        walked.stuck.pop(rank, None)
        stages = schedule.stages[rank]
        for block in lanes[rank][position[rank]:]:
            needed = [need for action in block.actions for need in needs(action, stages[action.chunk], num_stages)]
            missing = next((need for need in needed if need not in there), None)
            if missing:
                walked.stuck[rank] = block, missing
                waiting.setdefault(missing, []).append(rank)
                break
            position[rank] += 1
            for number, action in enumerate(block.actions):
                result = leaves(action, stages[action.chunk])
                if result:
                    there[result] = Source(len(walked.done), number)
                    ready.extend(waiting.pop(result, []))
            walked.done.append(block)
            walked.sources.append([there[need] for need in needed])
    return walked


def singles(schedule: Schedule) -> list[list[Block]]:
    """Each rank's actions, every one a block by itself."""
    return [[Block(rank, (action,)) for action in actions] for rank, actions in enumerate(schedule.actions)]
