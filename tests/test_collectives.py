"""Every collective equals torch.distributed's on made-up inputs, sends exactly the bytes of its formula, and is made of
send and recv alone. Many cases travel in one launch."""

from dataclasses import dataclass
from functools import partial

import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch.distributed import ReduceOp

from course_lib import collectives
from course_lib.collectives import pipelined_ring
from course_lib.runtime import launch, record_communication

ALL_REDUCES = ("ring_all_reduce", "naive_all_reduce", "tree_all_reduce", "halving_doubling_all_reduce")
REDUCTIONS = (*ALL_REDUCES, "ring_reduce_scatter", "tree_reduce")
OTHERS = ("ring_all_gather", "tree_broadcast", "pairwise_all_to_all", "gather", "scatter")
DTYPES = (torch.float32, torch.bfloat16, torch.int64)


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
        made = torch.randint(-8, 9, self.shape, generator=generator).to(self.dtype)
        if self.layout == "transposed":
            return made.mT.contiguous().mT if made.dim() > 1 else made
        if self.layout == "every second":
            return torch.stack([made, made + 1], dim=-1)[..., 0]
        return made


def cases(world_size):
    groups = st.lists(st.integers(0, world_size - 1), min_size=1, unique=True).map(lambda g: tuple(sorted(g)))
    world = tuple(range(world_size))

    @st.composite
    def one(draw, among):
        dtype = draw(st.sampled_from(DTYPES))
        ops = [ReduceOp.SUM, ReduceOp.MAX, ReduceOp.MIN] + [ReduceOp.AVG] * dtype.is_floating_point
        members = draw(st.sampled_from(among))
        shape = draw(st.lists(st.integers(0, 13), min_size=1, max_size=3).map(tuple))
        layout = draw(st.sampled_from(["contiguous", "transposed", "every second"]))
        return Case(draw(st.sampled_from(REDUCTIONS + OTHERS)), members, shape, layout, dtype,
                    draw(st.sampled_from(ops)), draw(st.integers(0, len(members) - 1)), draw(st.integers(0, 9)))

    return st.lists(groups, max_size=2).flatmap(
        lambda some: st.lists(one([world, *some]), min_size=25, max_size=60))


def by_torch(case, mine, place, group):
    """What torch.distributed makes of contiguous inputs; for tree_reduce on the root alone."""
    n, root = case.n, case.members[case.root]
    if case.algorithm in REDUCTIONS:
        dist.all_reduce(mine, case.op, group)
        if case.algorithm == "tree_reduce":
            return mine if place == case.root else None
        return mine.tensor_split(n)[place] if case.algorithm == "ring_reduce_scatter" else mine
    if case.algorithm == "tree_broadcast":
        dist.broadcast(mine, root, group)
        return mine
    if case.algorithm in ("ring_all_gather", "gather"):
        parts = [torch.empty_like(mine) for _ in range(n)]
        dist.all_gather(parts, mine, group)
        if case.algorithm == "gather":
            return torch.stack(parts) if place == case.root else None
        return torch.cat(parts)
    if case.algorithm == "scatter":
        dist.scatter(mine, [case.input(j).contiguous() for j in range(n)] if place == case.root else None, root, group)
        return mine
    sizes = [len(piece) for piece in mine.tensor_split(n)]
    out = mine.new_empty(n * sizes[place], *mine.shape[1:])
    dist.all_to_all_single(out, mine, [sizes[place]] * n, sizes, group)
    return out


def by_us(case, mine, place, group):
    root = case.members[case.root]
    function = getattr(collectives, case.algorithm)
    if case.algorithm in ALL_REDUCES:
        function(mine, case.op, group)
    elif case.algorithm == "tree_reduce":
        function(mine, root, case.op, group)
        return mine if place == case.root else None
    elif case.algorithm == "tree_broadcast":
        function(mine, root, group)
    elif case.algorithm == "scatter":
        function(mine, [case.input(j) for j in range(case.n)] if place == case.root else None, root, group)
    elif case.algorithm == "gather":
        parts = function(mine, None, root, group)
        return parts if parts is None else torch.stack(parts)
    elif case.algorithm == "ring_reduce_scatter":
        return function(mine, case.op, group)
    else:
        return function(mine, group=group)
    return mine


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
        "pairwise_all_to_all": lambda: N - row_chunks[place],
        "gather": lambda: N if v else 0,
        "scatter": lambda: 0 if v else (n - 1) * N,
    }[algorithm]()


def halving_doubling_elements(n, place, N):
    """N + N/2 + ... over the regions a rank works on: each is sent once, half on the way down and half on the way up."""
    p = 1 << (n.bit_length() - 1)
    if place >= p:
        return N
    sent = N if place + p < n else 0
    for step in range(p.bit_length() - 1):
        sent += N
        N = N // 2 if place >> step & 1 else (N + 1) // 2
    return sent


def run(cases):
    """On each rank: the cases that went wrong, in words."""
    groups = {members: dist.new_group(members) for members in sorted({case.members for case in cases})}
    return [problem for case in cases if dist.get_rank() in case.members
            for problem in problems_of(case, groups[case.members])]


def problems_of(case, group):
    place = case.members.index(dist.get_rank())
    before = case.input(place)
    mine = case.input(place)
    with record_communication() as log:
        got = by_us(case, mine, place, group)
    empty = torch.Size(case.shape).numel() == 0
    expected = got if empty else by_torch(case, before.clone().contiguous(), place, group)
    if (got is None) != (expected is None) or got is not None and not torch.equal(got, expected):
        yield f"{case} on place {place}: got {got}, expected {expected}"
    if case.algorithm in ("ring_reduce_scatter", "ring_all_gather", "pairwise_all_to_all", "gather"):
        if not torch.equal(mine, before):
            yield f"{case} on place {place}: changed its input"
    if not {event.op for event in log.events} <= {"send", "recv"}:
        yield f"{case} on place {place}: called {[event.op for event in log.events]}"
    formula = sent_elements(case.algorithm, case.n, place, case.root, case.shape) * case.dtype.itemsize
    if log.sent_bytes != formula:
        yield f"{case} on place {place}: sent {log.sent_bytes} bytes, expected {formula}"


@pytest.mark.parametrize("world_size", range(1, 9))
def test_each_equals_torch_distributed_and_sends_the_bytes_of_its_formula_by_send_and_recv_alone(world_size):
    # No shrinking: a failing case is named, and is small.
    @settings(max_examples=3, derandomize=True, deadline=None, phases=[Phase.generate], database=None,
              suppress_health_check=list(HealthCheck))
    @given(cases(world_size))
    def holds(drawn):
        problems = [problem for of_rank in launch(run, drawn, world_size=world_size) for problem in of_rank]
        assert not problems, "\n\n".join(problems[:3])

    holds()
