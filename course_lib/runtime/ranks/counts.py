"""What ranks have called, compared: {rank: {(operation, ranks of the group): how often}}.

All ranks of a group make the same collective calls on it in one order. So of two ranks one has made all that the other
has made, and perhaps more; where each has made a call that the other has not, they have gone different ways.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from course_lib.runtime.operations import POINT_TO_POINT
from course_lib.runtime.ranks.messages import Counts


def are_in_step(counts: Mapping[int, Counts]) -> bool:
    """Whether every rank has made the same calls on each group, and as many sends as receives."""
    keys = {key for of_rank in counts.values() for key in of_rank}
    made = {key: [counts.get(rank, {}).get(key, 0) for rank in key[1]] for key in keys}
    messages = {group: [sum(made.get((op, group), [0])) for op in POINT_TO_POINT] for _, group in keys}
    return (all(len(set(numbers)) == 1 for (op, _), numbers in made.items() if op not in POINT_TO_POINT)
            and all(sends == receives for sends, receives in messages.values()))


def never_meet(counts: Mapping[int, Counts], unfinished: Sequence[int]) -> bool:
    """Whether a rank has made a call that another one of its group will never make: that one has returned, or each of
    the two has made a collective call that the other has not. A rank that is only behind may still come.
    """
    for group in {group for of_rank in counts.values() for _, group in of_rank}:
        made = {rank: _made_on(group, counts[rank]) for rank in group if rank in counts}
        collectives = {rank: Counter({op: count for op, count in calls.items() if op not in POINT_TO_POINT})
                       for rank, calls in made.items()}
        lacks = {(behind, ahead) for ahead in made for behind in made if collectives[ahead] - collectives[behind]}
        if any(behind not in unfinished or (ahead, behind) in lacks for behind, ahead in lacks):
            return True
        left = set(group) & set(unfinished)
        sent = sum(calls["send"] for rank, calls in made.items() if rank not in left)
        if len(left) == 1 and made[min(left)]["recv"] > sent:  # nobody else can send any more
            return True
    return False


def compare_calls(counts: Mapping[int, Counts]) -> str:
    """A sentence: which ranks have made fewer calls of which operation than others of their group."""
    said = []
    for op, group in sorted({key for of_rank in counts.values() for key in of_rank}):
        made = {rank: _made_on(group, counts[rank])[op] for rank in group if rank in counts}
        most = max(made.values())
        if op in POINT_TO_POINT:
            sent, received = (sum(_made_on(group, of_rank)[each] for of_rank in counts.values())
                              for each in POINT_TO_POINT)
            said += [f"{received} recv and {sent} send have been called"] * (sent != received)
            continue
        for count in sorted(set(made.values()) - {most}, reverse=True):
            behind, ahead = ([rank for rank in made if made[rank] == number] for number in (count, most))
            fewer = "one" if most - count == 1 else str(most - count)
            said.append(f"{list_ranks(behind)} {verb('have', behind)} made {fewer} {op} fewer than {list_ranks(ahead)}")
    return f"{'; '.join(dict.fromkeys(said)) or 'the ranks wait for one another'}."


def list_calls(counts: Counts) -> str:
    """`all_reduce 3 times, broadcast once`, for one rank."""
    made: Counter[str] = Counter()
    for (op, _), count in counts.items():
        made[op] += count
    return ", ".join(f"{op} {'once' if count == 1 else f'{count} times'}" for op, count in made.items()) or "nothing"


def _made_on(group: tuple[int, ...], counts: Counts) -> Counter[str]:
    """operation -> how often it has been called on this group."""
    return Counter({op: count for (op, ranks), count in counts.items() if ranks == group})


def list_ranks(ranks: Iterable[int]) -> str:
    """`rank 1`, or `ranks 0, 1 and 3`."""
    names = [str(rank) for rank in sorted(ranks)]
    return f"rank {names[0]}" if len(names) == 1 else f"ranks {', '.join(names[:-1])} and {names[-1]}"


def verb(plural: str, ranks: Sequence[int] | Mapping[int, object]) -> str:
    """`plural` as it goes with so many ranks."""
    return plural if len(ranks) != 1 else "has" if plural == "have" else f"{plural}s"
