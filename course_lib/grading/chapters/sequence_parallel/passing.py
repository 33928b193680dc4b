"""Exercise 7.4: blocks that go around a ring, each used by every rank, with no more than a few of them on a rank.

    R  ranks, r this one      M  bytes of a block      in step i rank r uses the block of rank r - i
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from course_lib.grading.calls import CollectiveExercise, count_calls
from course_lib.grading.chapters.models import ROUNDING
from course_lib.grading.chapters.split import normal
from course_lib.grading.exercise import Trial, ranks_of
from course_lib.grading.spent import Spent, amount, most

Inputs = list[dict[str, Any]]
HELD = 4  # blocks beside the rank's own: one used, one arriving, and what gloo's thread has not let go of yet


class PassAround(CollectiveExercise):
    number = "7.4"
    function = "my_pass_around"
    points = 3
    tolerance = ROUNDING
    compared = "used"
    words = "used"
    right = "every block was used, in the right order"
    budget = "(R-1) M bytes sent by each rank; at most 4 blocks held beside its own, however many ranks there are"
    hints = (
        "How often has a block to move until everybody has had it? And why send before you use, and wait behind it?",
        "R steps: begin to send the block that you have, use it, then wait for the one that arrives. In step i it is "
        "that of rank r - i, around the end. In the last step nobody needs to send.",
        "for step in range(R):\n"
        "    if step < R - 1:\n"
        "        arriving = to_the_right(block)\n"
        "    use(block, ...)\n"
        "    ...  # wait, except in the last step",
    )

    def trials(self, seed: int) -> list[Trial]:
        generator = torch.Generator().manual_seed(seed)
        return [Trial([{"block": normal(generator, 2, *shape)} for _ in range(R)],
                      f"{ranks_of(R)}, blocks of {amount(16 * shape[0] * shape[1])}")
                for R, shape in ((3, (2, 3)), (2, (3, 1)), (1, (2, 2)), (6, (64, 64)))]

    @staticmethod
    def run(function: Callable, inputs: dict[str, Any]) -> dict[str, Any]:
        from course_lib.runtime import record_memory

        block, used = inputs["block"].clone(), []

        def use(block: Tensor, source: int) -> None:
            used.append([int(source), seen(block)])

        with record_memory() as log:
            before = log.current
            _, calls = count_calls(function, block, use)
        return {"used": used, "calls": calls, "held": log.peak - before}

    def expected(self, inputs: Inputs) -> list[Any]:
        return went(inputs)

    def mistakes(self, inputs: Inputs) -> Iterable[tuple[str, list[Any]]]:
        R, right = len(inputs), went(inputs)
        yield ("the blocks come from the right: send to rank r + 1, so that in step i rank r has the block of rank "
               "r - i", went(inputs, lambda r, i: (r + i, r + i)))
        yield ("the blocks are right, but their owners are not: what arrives from the left is that of rank r - i, not "
               "r + i", went(inputs, lambda r, i: (r + i, r - i)))
        yield ("the owners are right, but the blocks come from the right: send to rank r + 1",
               went(inputs, lambda r, i: (r - i, r + i)))
        yield ("each rank uses its own block R times: what has arrived is the next one to use, and to send",
               went(inputs, lambda r, i: (r - i, r)))
        yield ("every block is said to be this rank's own: source is the rank that it came from at first, r - i",
               went(inputs, lambda r, i: (r, r - i)))
        yield ("the blocks are right, but source is the left neighbour: it is the rank that the block came from at "
               "first, r - i", went(inputs, lambda r, i: (r - min(i, 1), r - i)))
        yield "this rank's own block is not used: it comes first, in step 0", [used[1:] for used in right]
        yield "the last block is not used: R steps, in the last of which nothing is sent", [used[:-1] for used in right]
        yield ("the blocks are used in the order of the ranks: as they arrive, this rank's own first",
               [[[i, seen(inputs[i]["block"])] for i in range(R)] for _ in inputs])

    def kept(self, trial: Trial, answers: list[Any]) -> list[Spent]:
        held = [answer["held"] for answer in answers]
        block = trial.inputs[0]["block"].nbytes
        return [Spent("holds", max(held), HELD * block, on=" of others' blocks", rank=most(held), slack=block // 4,
                      claimed=True, why="a ring needs the block in use and the one that arrives; do not gather, and "
                                        "let go of what was used")]

    def bound(self, trial: Trial) -> int:
        return (trial.world_size - 1) * trial.inputs[0]["block"].nbytes

    def waste(self, answers: list[Any]) -> str:
        return "a block that everybody has used need not go home: R - 1 messages, nothing in the last step"


def seen(block: Tensor) -> list[float]:
    """What tells one block from another."""
    return [block.double().sum().item(), block.flatten()[0].item(), block.flatten()[-1].item()]


def went(inputs: Inputs, way: Callable[[int, int], tuple[int, int]] = lambda r, i: (r - i, r - i)) -> list[Any]:
    """What each rank uses; way(r, i): the owner said and the owner of the block, in step i of rank r."""
    R = len(inputs)
    return [[[said % R, seen(inputs[owner % R]["block"])] for said, owner in (way(r, i) for i in range(R))]
            for r in range(R)]
