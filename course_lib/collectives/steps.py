"""A collective as data: the messages of every algorithm of this chapter, step by step, as its code sends them.

    n  ranks      c  a chunk: one of the equal pieces that the whole message M is cut into      g  ranks in a node

In one step no rank sends twice or receives twice, and what it sends it had before the step.
tests/collectives/test_plan.py holds these lists against the messages of real ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from course_lib.costs.links import largest_power_of_two, powers_of_two_below

NUM_NODES = 2  # of the hierarchical all-reduce
Chunks = tuple[int, ...]


@dataclass(frozen=True)
class Message:
    """`src` sends what lies in its slots `chunks`, and `dst` copies or adds it into its own slots `into`."""

    src: int
    dst: int
    chunks: Chunks
    kind: Literal["add", "copy"]
    into: Chunks


@dataclass(frozen=True)
class Step:
    """Messages that travel at the same time. `passes_on`: the partial sums sent leave nothing behind (ring.py)."""

    phase: str
    messages: tuple[Message, ...]
    passes_on: bool = False


def add(src: int, dst: int, chunks: Chunks) -> Message:
    """A message whose receiver adds what comes to its own chunks."""
    return Message(src, dst, chunks, "add", chunks)


def copy(src: int, dst: int, chunks: Chunks, into: Chunks | None = None) -> Message:
    """A message whose receiver keeps what comes, in the same slots or in those of `into`."""
    return Message(src, dst, chunks, "copy", chunks if into is None else into)


def ring_reduce_scatter_steps(ranks: Sequence[int], pieces: Sequence[Chunks]) -> list[Step]:
    """Among `ranks`, the r-th of which ends with pieces[r] complete."""
    n = len(ranks)
    return [Step("reduce-scatter", tuple(add(ranks[r], ranks[(r + 1) % n], pieces[(r - step - 1) % n])
                                         for r in range(n)), passes_on=True) for step in range(n - 1)]


def ring_all_gather_steps(ranks: Sequence[int], pieces: Sequence[Chunks]) -> list[Step]:
    """Among `ranks`, the r-th of which has pieces[r]."""
    n = len(ranks)
    return [Step("all-gather", tuple(copy(ranks[r], ranks[(r + 1) % n], pieces[(r - step) % n])
                                     for r in range(n))) for step in range(n - 1)]


def singles(n: int) -> list[Chunks]:
    """n pieces of one chunk each."""
    return [(c,) for c in range(n)]


def ring_all_reduce_steps(n: int) -> list[Step]:
    """All-reduce around a ring: n-1 steps that add up one piece on each rank, n-1 that hand them all around."""
    return ring_reduce_scatter_steps(range(n), singles(n)) + ring_all_gather_steps(range(n), singles(n))


def naive_all_reduce_steps(n: int) -> list[Step]:
    """All-reduce through rank 0: everybody sends it everything, one after the other, and gets the sum back."""
    whole = tuple(range(n))
    to_root = [Step("reduce", (add(other, 0, whole),)) for other in range(1, n)]
    return to_root + [Step("broadcast", (copy(0, other, whole),)) for other in range(1, n)]


def tree_broadcast_steps(n: int) -> list[Step]:
    """Whoever has it passes it on: after step s, 2^s ranks do. ceil(log2 n) steps, rank 0 first."""
    whole = tuple(range(n))
    return [Step("broadcast", tuple(copy(v, v + know, whole) for v in range(know) if v + know < n))
            for know in powers_of_two_below(n)]


def tree_reduce_steps(n: int) -> list[Step]:
    """A broadcast run backwards: half of the ranks hand theirs in at each step, until rank 0 has the sum."""
    whole = tuple(range(n))
    return [Step("reduce", tuple(add(v + know, v, whole) for v in range(know) if v + know < n))
            for know in reversed(powers_of_two_below(n))]


def tree_all_reduce_steps(n: int) -> list[Step]:
    """All-reduce up a tree and down again: few steps, but each carries the whole message."""
    return tree_reduce_steps(n) + tree_broadcast_steps(n)


def halving_doubling_all_reduce_steps(n: int) -> list[Step]:
    """All-reduce by pairs at distance 1, 2, 4, ...: each exchanges half of what is left to add up, then the way back
    doubles it.
    """
    p = largest_power_of_two(n)
    whole = tuple(range(p))
    halving, doubling = [], []
    region = dict.fromkeys(range(p), whole)
    for distance in powers_of_two_below(p):
        sends, returns = [], []
        for r in range(p):
            low, high = region[r][:len(region[r]) // 2], region[r][len(region[r]) // 2:]
            mine, theirs = (high, low) if r & distance else (low, high)
            sends.append(add(r, r ^ distance, theirs))
            returns.append(copy(r, r ^ distance, mine))
            region[r] = mine
        halving.append(Step("halving", tuple(sends)))
        # In reverse: who split last comes together first.
        doubling.insert(0, Step("doubling", tuple(returns)))
    return hand_in_and_back(halving + doubling, whole, range(p, n), p)


def recursive_doubling_all_reduce_steps(n: int) -> list[Step]:
    """All-reduce by pairs at distance 1, 2, 4, ...: each step exchanges the whole message, so log2 p steps are enough.
    """
    p = largest_power_of_two(n)
    whole = tuple(range(n))
    doubling = [Step("doubling", tuple(add(r, r ^ distance, whole) for r in range(p)))
                for distance in powers_of_two_below(p)]
    return hand_in_and_back(doubling, whole, range(p, n), p)


def hand_in_and_back(steps: list[Step], whole: Chunks, above: range, p: int) -> list[Step]:
    """`steps` among the first p ranks; those `above` hand their tensor in before, wait, and get the result after."""
    # On a power of two there is no such step: an empty one would be counted.
    into = [Step("hand in", tuple(add(r, r - p, whole) for r in above))] * bool(above)
    out = [Step("hand back", tuple(copy(r - p, r, whole) for r in above))] * bool(above)
    return into + steps + out


def hierarchical_all_reduce_steps(n: int) -> list[Step]:
    """All-reduce on two nodes: add up inside each, exchange the pieces across, and share the result inside."""
    k, g = NUM_NODES, n // NUM_NODES
    nodes = [range(node * g, (node + 1) * g) for node in range(k)]
    # The ranks with the same place in their nodes: after the first phase they hold the same chunks.
    across = [range(r, n, g) for r in range(g)]
    pieces = [tuple(range(r * k, (r + 1) * k)) for r in range(g)]
    inside = [(node, pieces) for node in nodes]
    outside = [(row, [(c,) for c in piece]) for row, piece in zip(across, pieces)]
    return (together("reduce-scatter inside", [ring_reduce_scatter_steps(*each) for each in inside])
            + together("reduce-scatter across", [ring_reduce_scatter_steps(*each) for each in outside])
            + together("all-gather across", [ring_all_gather_steps(*each) for each in outside])
            + together("all-gather inside", [ring_all_gather_steps(*each) for each in inside]))


def together(phase: str, groups: Sequence[list[Step]]) -> list[Step]:
    """Steps that several groups of ranks take side by side."""
    return [Step(phase, tuple(message for step in side_by_side for message in step.messages),
                 side_by_side[0].passes_on) for side_by_side in zip(*groups)]


def gather_steps(n: int) -> list[Step]:
    """Each rank in turn sends its chunk to rank 0."""
    return [Step("gather", (copy(other, 0, (other,)),)) for other in range(1, n)]


def scatter_steps(n: int) -> list[Step]:
    """Rank 0 sends each rank its chunk, one after the other."""
    return [Step("scatter", (copy(0, other, (other,)),)) for other in range(1, n)]


def pairwise_all_to_all_steps(n: int) -> list[Step]:
    """Slots 0 to n-1 are the input, n to 2n-1 the output: piece j goes from slot j to slot n+r.

    >>> [[(message.src, message.dst) for message in step.messages] for step in pairwise_all_to_all_steps(3)]
    [[(0, 1), (1, 2), (2, 0)], [(0, 2), (1, 0), (2, 1)]]
    """
    return [Step("all-to-all", tuple(copy(r, (r + step) % n, ((r + step) % n,), (n + r,)) for r in range(n)))
            for step in range(1, n)]


# (op, algorithm) -> steps for n ranks; the names are those of costs.links
MESSAGES: dict[tuple[str, str], Callable[[int], list[Step]]] = {
    ("all_reduce", "ring"): ring_all_reduce_steps,
    ("all_reduce", "naive"): naive_all_reduce_steps,
    ("all_reduce", "tree"): tree_all_reduce_steps,
    ("all_reduce", "halving_doubling"): halving_doubling_all_reduce_steps,
    ("all_reduce", "recursive_doubling"): recursive_doubling_all_reduce_steps,
    ("all_reduce", "hierarchical"): hierarchical_all_reduce_steps,
    ("reduce_scatter", "ring"): lambda n: ring_reduce_scatter_steps(range(n), singles(n)),
    ("all_gather", "ring"): lambda n: ring_all_gather_steps(range(n), singles(n)),
    ("broadcast", "tree"): tree_broadcast_steps,
    ("reduce", "tree"): tree_reduce_steps,
    ("gather", "naive"): gather_steps,
    ("scatter", "naive"): scatter_steps,
    ("all_to_all", "pairwise"): pairwise_all_to_all_steps,
}
