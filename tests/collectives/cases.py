"""One call of a collective on the ranks, what one process makes of all inputs, and the bytes that the formula says.

Apart from the tests, since ranks import it in every launch: pytest and hypothesis would cost them a second.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from course_lib import collectives
from course_lib.runtime import device, record_communication

ALL_REDUCES = ("ring_all_reduce", "naive_all_reduce", "tree_all_reduce", "halving_doubling_all_reduce",
               "recursive_doubling_all_reduce")
REDUCTIONS = (*ALL_REDUCES, "ring_reduce_scatter", "tree_reduce")
RETURNED = ("ring_reduce_scatter", "ring_all_gather", "pairwise_all_to_all", "gather")  # which leave their input alone
OTHERS = ("ring_all_gather", "tree_broadcast", "pairwise_all_to_all", "gather", "scatter")


@dataclass(frozen=True)
class Case:
    """One call: `shape` is that of each rank's input, `root` a place in the group."""

    algorithm: str
    members: tuple[int, ...]
    shape: tuple[int, ...]
    layout: str
    dtype: torch.dtype
    op: ReduceOp.RedOpType
    root: int
    seed: int

    @property
    def n(self):
        return len(self.members)

    def input(self, place):
        """Small whole numbers, which every dtype adds without rounding: results must be equal to the bit."""
        generator = torch.Generator().manual_seed(1000 * self.seed + place)
        made = torch.randint(-8, 9, self.shape, generator=generator, device="cpu").to(device(), self.dtype)
        return laid_out(made, self.layout)


def laid_out(tensor, layout):
    """The same numbers, contiguous or not."""
    if layout == "transposed":
        return tensor.mT.contiguous().mT if tensor.dim() > 1 else tensor
    return torch.stack([tensor, tensor + 1], dim=-1)[..., 0] if layout == "every second" else tensor


def expected(case, place):
    """What one process computes from all inputs; None where the rank gets nothing, or what it has is of no meaning."""
    inputs, at_root = [case.input(j).contiguous() for j in range(case.n)], place == case.root
    if case.algorithm in REDUCTIONS:
        total = {ReduceOp.MAX: lambda: torch.stack(inputs).amax(0), ReduceOp.MIN: lambda: torch.stack(inputs).amin(0)
                 }.get(case.op, lambda: sum(inputs))()
        total = total / case.n if case.op == ReduceOp.AVG else total
        if case.algorithm == "ring_reduce_scatter":
            return total.tensor_split(case.n)[place]
        return total if at_root or case.algorithm != "tree_reduce" else None
    return {"tree_broadcast": lambda: inputs[case.root], "ring_all_gather": lambda: torch.cat(inputs),
            "gather": lambda: torch.stack(inputs) if at_root else None, "scatter": lambda: inputs[place],
            "pairwise_all_to_all": lambda: torch.cat([x.tensor_split(case.n)[place] for x in inputs])}[case.algorithm]()


def found(case, mine, place, group):
    """The same by ours, in place or returned."""
    function, root, at_root = getattr(collectives, case.algorithm), case.members[case.root], place == case.root
    everyones = [case.input(j) for j in range(case.n)] if at_root else None
    arguments = {"tree_reduce": (root, case.op), "tree_broadcast": (root,), "scatter": (everyones, root),
                 "gather": (None, root), "ring_all_gather": (), "pairwise_all_to_all": ()}
    got = function(mine, *arguments.get(case.algorithm, (case.op,)), group=group)
    if case.algorithm == "gather":
        return torch.stack(got) if at_root else got
    return got if case.algorithm in RETURNED else mine if at_root or case.algorithm != "tree_reduce" else None


def rows(n, length):
    """Lengths of the chunks as torch.tensor_split cuts them."""
    return [length // n + (place < length % n) for place in range(n)]


def sent_elements(algorithm, n, place, root, shape):
    """The formulas of the modules' docstrings, for one rank and any length."""
    N = torch.Size(shape).numel()
    chunks = rows(n, N)
    width = N // shape[0] if shape[0] else 0
    row_chunks = [width * length for length in rows(n, shape[0])]
    v = (place - root) % n
    children = sum(1 for know in (1, 2, 4) if v < know and v + know < n)
    return {
        "ring_all_reduce": lambda: 2 * N - chunks[place] - chunks[(place + 1) % n] if n > 1 else 0,
        "ring_reduce_scatter": lambda: N - row_chunks[place] if n > 1 else 0,
        "ring_all_gather": lambda: (n - 1) * N,
        "naive_all_reduce": lambda: N if place else (n - 1) * N,
        "tree_broadcast": lambda: children * N,
        "tree_reduce": lambda: N if v else 0,
        "tree_all_reduce": lambda: sent_elements("tree_reduce", n, place, 0, shape)
        + sent_elements("tree_broadcast", n, place, 0, shape),
        "halving_doubling_all_reduce": lambda: halving_doubling_elements(n, place, N),
        "recursive_doubling_all_reduce": lambda: recursive_doubling_messages(n, place) * N,
        "pairwise_all_to_all": lambda: N - row_chunks[place],
        "gather": lambda: N if v else 0,
        "scatter": lambda: 0 if v else (n - 1) * N,
    }[algorithm]()


def halving_doubling_elements(n, place, N):
    """N + N/2 + ...: of each region it works on, a rank sends one half on the way down, the other on the way up."""
    p = 1 << (n.bit_length() - 1)
    if place >= p:
        return N
    sent = N if place + p < n else 0
    for step in range(p.bit_length() - 1):
        sent += N
        N = N // 2 if place >> step & 1 else (N + 1) // 2
    return sent


def recursive_doubling_messages(n, place):
    p = 1 << (n.bit_length() - 1)
    return 1 if place >= p else p.bit_length() - 1 + (place + p < n)


def run(cases, problems_of=None):
    """On each rank: the cases that went wrong, in words."""
    problems_of = problems_of or problems_of_a_call
    groups = {members: dist.new_group(members) for members in sorted({case.members for case in cases})}
    return [problem for case in cases if dist.get_rank() in case.members
            for problem in problems_of(case, groups[case.members])]


def problems_of_a_call(case, group):
    place = case.members.index(dist.get_rank())
    mine, right = case.input(place), expected(case, place)
    with record_communication() as log:
        got = found(case, mine, place, group)
    if (got is None) != (right is None) or got is not None and not torch.equal(got, right):
        yield f"{case} on place {place}: got {got}, expected {right}"
    if case.algorithm in RETURNED and not torch.equal(mine, case.input(place)):
        yield f"{case} on place {place}: changed its input"
    if not {event.op for event in log.events} <= {"send", "recv"}:
        yield f"{case} on place {place}: called {[event.op for event in log.events]}"
    formula = sent_elements(case.algorithm, case.n, place, case.root, case.shape) * case.dtype.itemsize
    if log.sent_bytes != formula:
        yield f"{case} on place {place}: sent {log.sent_bytes} bytes, expected {formula}"


def mistakes(foreign):
    """Of rank 0 of 2; rank 1 is not asked, for all fail before they send."""
    two, three, c = torch.ones(2), torch.ones(3), collectives
    world = dist.group.WORLD
    return {
        "unknown op": lambda: c.ring_all_reduce(two, ReduceOp.PRODUCT),
        "op as text": lambda: c.tree_reduce(two, op="sum"),
        "average of integers": lambda: c.ring_all_reduce(two.long(), ReduceOp.AVG),
        "foreign group": lambda: c.ring_all_reduce(two, group=foreign),
        "no group": lambda: c.ring_all_reduce(two, group="world"),
        "root outside": lambda: c.tree_broadcast(two, src=7),
        "size of out": lambda: c.ring_reduce_scatter(torch.ones(6), out=two),
        "dtype of out": lambda: c.ring_all_gather(three, out=torch.ones(6).long()),
        "nothing to cut": lambda: c.pairwise_all_to_all(torch.tensor(1.0)),
        "one side's sizes": lambda: c.pairwise_all_to_all(two, [1, 1]),
        "sizes that miss rows": lambda: c.pairwise_all_to_all(two, [1, 0], [1, 0]),
        "too few sizes": lambda: c.pairwise_all_to_all(two, [2], [1, 1]),
        "sizes that disagree": lambda: c.pairwise_all_to_all(two, [3, 1], [1, 1]),
        "no scatter_list": lambda: c.scatter(two),
        "size of an entry": lambda: c.scatter(two, [two, three]),
        "size of a part": lambda: c.gather(two, [three, two]),
        "list on another rank": lambda: c.gather(two, [two, two], dst=1),
        "one group twice": lambda: c.hierarchical_all_reduce(two, world, world),
    }
