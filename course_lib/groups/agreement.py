"""What only one rank can see is wrong, every rank says: a rank that stopped alone would leave the others waiting."""

from collections.abc import Callable

import torch
import torch.distributed as dist

from course_lib.groups.membership import Member


def agree(problem: str | None, facts: object, me: Member) -> list:
    """The `facts` of all ranks, in the order of the group; ValueError on every rank if one has a `problem`."""
    everyones: list = [None] * me.n
    dist.all_gather_object(everyones, (problem, facts), group=me.group)
    require_none([said for said, _ in everyones])
    return [fact for _, fact in everyones]


def start_to_agree(problem: str | None, numbers: list[int], me: Member, device: torch.device
                   ) -> Callable[[], list[list[int]]]:
    """The same for a few whole numbers, in one small message that travels while the rank goes on.

    Returns a function that waits for it. The text is sent only when there is a problem.
    """
    mine = torch.tensor([problem is not None, *numbers], device=device)
    everyones = [torch.empty_like(mine) for _ in range(me.n)]
    work = dist.all_gather(everyones, mine, group=me.group, async_op=True)

    def finish() -> list[list[int]]:
        work.wait()
        found = torch.stack(everyones).tolist()
        if any(row[0] for row in found):
            agree(problem, None, me)
        return [row[1:] for row in found]

    return finish


def require_none(problems: list[str | None]) -> None:
    """ValueError that lists the problems, equal ones once, with the places that have them."""
    places: dict[str, list[int]] = {}
    for place, problem in enumerate(problems):
        if problem is not None:
            places.setdefault(problem, []).append(place)
    if len(places) == 1 and None not in problems:
        raise ValueError(next(iter(places)))
    if places:
        raise ValueError("; ".join(f"on rank{'s' * (len(where) > 1)} {', '.join(map(str, where))} of the pipeline: "
                                   f"{text}" for text, where in places.items()))
