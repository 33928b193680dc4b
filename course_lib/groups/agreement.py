"""What only one rank can see is wrong, every rank says: a rank that stopped alone would leave the others waiting.

    agree             a problem, and facts of any kind
    start_agreement   a problem, and a few whole numbers, which travel while the rank goes on
    require_same      no problem that one rank could see: the ranks differ. Eight bytes each say whether
"""

import hashlib
from collections.abc import Callable, Sequence
from itertools import zip_longest

import torch
import torch.distributed as dist

from course_lib.groups.exchange import start_gather
from course_lib.groups.membership import Group, member
from course_lib.runtime import device


def agree(problem: str | None, facts: object, group: Group = None) -> list:
    """The `facts` of all ranks, in the order of the group; ValueError on every rank if one has a `problem`."""
    me = member(group)
    # Ranks without a problem take part, too: that another one has one they learn here.
    everyones: list = [(problem, facts)] * me.n
    if me.n > 1:
        dist.all_gather_object(everyones, (problem, facts), group=me.group)
    report([said for said, _ in everyones])
    return [fact for _, fact in everyones]


def start_agreement(problem: str | None, numbers: Sequence[int], group: Group = None) -> Callable[[], list[list[int]]]:
    """The same for a few whole numbers, in one small message that travels while the rank goes on.

    Returns a function that waits for it. The text is sent only when there is a problem.
    """
    finish_gather = start_gather_numbers([problem is not None, *numbers], group)

    def finish() -> list[list[int]]:
        found = finish_gather()
        # All ranks see the same flags, so either all of them send the text or none.
        if any(has_one for has_one, *_ in found):
            agree(problem, None, group)
        return [of_rank for _, *of_rank in found]

    return finish


def require_same(lines: Sequence[str], group: Group, what: str, expected: str) -> None:
    """ValueError, on all ranks, unless the ranks' `lines` are the same: with the first two that differ.

    It begins "the ranks hold different `what`" and ends "Expected `expected` on every rank".
    """
    everyones = start_gather_numbers([fingerprint("\n".join(lines))], group)()
    # Only now do the lines themselves travel: in the usual case eight bytes were enough.
    if any(each != everyones[0] for each in everyones):
        require_equal(agree(None, list(lines), group), what, expected)


def require_equal(everyones: Sequence[Sequence[str]], what: str, expected: str) -> None:
    """The same for those who have gathered everybody's lines already."""
    first, *others = everyones
    for place, other in enumerate(others, 1):
        if other != first:
            a, b = next((a, b) for a, b in zip_longest(first, other, fillvalue="nothing more") if a != b)
            raise ValueError(f"the ranks hold different {what}: place 0 has {a}, place {place} has {b}. Expected "
                             f"{expected} on every rank")


def fingerprint(text: str) -> int:
    """63 bits of a hash, at least 0: texts with the same number are the same for all that matters here."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def start_gather_numbers(numbers: Sequence[int], group: Group) -> Callable[[], list[list[int]]]:
    me = member(group)
    finish = start_gather(torch.tensor(numbers, dtype=torch.int64, device=me.wire(device())), me)
    return lambda: torch.stack(finish()).tolist()


def report(problems: Sequence[str | None]) -> None:
    """ValueError that lists the problems, equal ones once, with the places that have them."""
    places: dict[str, list[int]] = {}
    for place, problem in enumerate(problems):
        if problem is not None:
            places.setdefault(problem, []).append(place)
    if len(places) == 1 and None not in problems:
        raise ValueError(next(iter(places)))
    if places:
        raise ValueError("; ".join(f"at place{'s' * (len(where) > 1)} {', '.join(map(str, where))} of the group: "
                                   f"{text}" for text, where in places.items()))
