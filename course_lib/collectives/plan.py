"""A collective as a plan: its messages step by step, what every rank holds in between, and what it costs.

    M  the whole message, as in costs.links: what all_reduce, broadcast and reduce handle, the full output of
       all_gather and gather, the full input of reduce_scatter, scatter and all_to_all. Sizes are in units of M.

A broadcast, a gather and a scatter have rank 0 as their root. The bounds are those of the busiest rank: what it must
send or receive whatever the algorithm. Source: Thakur, Rabenseifner and Gropp 2005; Patarasuk and Yuan 2009.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property

from course_lib.collectives.holdings import Cell, Holdings, Share, name_ranks
from course_lib.collectives.steps import MESSAGES, NUM_NODES, Message, Step
from course_lib.costs.links import BOUND_FORMULAS, BOUNDS, largest_power_of_two

Amounts = tuple[Fraction, ...]  # of each rank, in units of M

FROM_ALL_TO_ONE = ("gather", "reduce")
STARTS_AT_ROOT = ("broadcast", "scatter")


@dataclass(frozen=True)
class Plan:
    """`states[s]` is what all ranks hold after s steps. `results`: (rank, slot) of what the op promises to leave."""

    op: str
    algorithm: str
    num_ranks: int
    num_chunks: int
    steps: tuple[Step, ...]
    states: tuple[Holdings, ...]
    results: frozenset[tuple[int, int]]

    @property
    def num_steps(self) -> int:
        """How many steps follow one another: what latency is paid for."""
        return len(self.steps)

    @property
    def before(self) -> Holdings:
        """What the ranks hold in the beginning, in num_chunks slots."""
        return Holdings(tuple(cells[:self.num_chunks] for cells in self.states[0].cells))

    @property
    def after(self) -> Holdings:
        """What the op leaves where it promises to, and nothing elsewhere."""
        # An all-to-all has its output behind its input; all else works in place.
        first = self.states[0].num_slots - self.num_chunks
        return Holdings(tuple(tuple(cell if (rank, slot) in self.results else ()
                                    for slot, cell in enumerate(cells) if slot >= first)
                              for rank, cells in enumerate(self.states[-1].cells)))

    def message_size(self, message: Message) -> Fraction:
        """The size of one message, in units of M."""
        return Fraction(len(message.chunks), self.num_chunks)

    def sent_by_rank(self, step: int = -1) -> Amounts:
        """What each rank has sent after `step` steps (default: all)."""
        return self._running_sums["src"][step]

    def received_by_rank(self, step: int = -1) -> Amounts:
        """What each rank has received after `step` steps (default: all)."""
        return self._running_sums["dst"][step]

    @cached_property
    def _running_sums(self) -> dict[str, list[Amounts]]:
        """For each rank at either end of its messages: nothing, then the sum after each step."""
        sums = {end: [(Fraction(0),) * self.num_ranks] for end in ("src", "dst")}
        for step in self.steps:
            for end, after_steps in sums.items():
                amounts = list(after_steps[-1])
                for message in step.messages:
                    amounts[getattr(message, end)] += self.message_size(message)
                after_steps.append(tuple(amounts))
        return sums

    @property
    def busiest(self) -> Fraction:
        """The most that one rank sends or receives."""
        return max(*self.sent_by_rank(), *self.received_by_rank())

    @property
    def bound(self) -> Fraction:
        """The least that the busiest rank has to send or receive, whatever the algorithm."""
        return BOUNDS[self.op](self.num_ranks)

    def finding(self) -> str:
        """Who is busy: `rank 0 sends 3.0 × the buffer while the others send 1.0 ×`."""
        if self.num_ranks == 1:
            return "one rank alone has nothing to send"
        sent, received = self.sent_by_rank(), self.received_by_rank()
        verb, each = ("receive", received) if max(received) > max(sent) else ("send", sent)
        most = max(each)
        top = [rank for rank in range(self.num_ranks) if each[rank] == most]
        if len(top) == self.num_ranks:
            return f"every rank {verb}s {times(most)} the buffer"
        others = [amount for amount in each if amount != most]
        alike = "" if len(set(others)) == 1 else "at most "
        rest = "nothing" if not any(others) else f"{alike}{times(max(others))}"
        s = "s" * (len(top) == 1)
        other_s = "s" * (len(others) == 1)
        the_others = "the other" if len(others) == 1 else "the others"
        return f"{name_ranks(top)} {verb}{s} {times(most)} the buffer while {the_others} {verb}{other_s} {rest}"

    def detail(self) -> str:
        """Steps, and the busiest rank against the bound."""
        name = self.op.replace("_", "-")
        a, bound = ("an" if name.startswith("a") else "a"), f"{BOUND_FORMULAS[self.op]} = {times(self.bound)}"
        if self.busiest == self.bound:
            against = f"the busiest rank moves {bound}, the least there is"
        else:
            against = f"the busiest rank moves {times(self.busiest)}, {a} {name} could do with {bound}"
        if self.algorithm == "hierarchical":
            against += f"; only {times(self.sent_between_nodes)} to the other node"
        return f"{self.num_steps} step{'s' * (self.num_steps != 1)}, one after the other; {against}"

    @property
    def sent_between_nodes(self) -> Fraction:
        """What rank 0 sends to ranks of other nodes, of which there are NUM_NODES."""
        g = self.num_ranks // NUM_NODES
        messages = (message for step in self.steps for message in step.messages if message.src == 0)
        return sum((self.message_size(message) for message in messages if message.dst >= g), Fraction(0))


def times(amount: Fraction) -> str:
    """An amount in units of M: `3.0 ×`, `1.75 ×`, `0.625 ×`; two decimals where it would not end, `1.33 ×`."""
    decimals = next((num for num in (1, 2, 3) if (amount * 10**num).denominator == 1), 2)
    return f"{float(amount):.{decimals}f} ×"


def plan(op: str, algorithm: str, num_ranks: int) -> Plan:
    """The plan of one collective. ValueError for a pair that course_lib.collectives does not have, or bad num_ranks.

    >>> [float(plan("all_reduce", algorithm, 4).busiest) for algorithm in ("ring", "naive")]  # of the buffer
    [1.5, 3.0]
    >>> plan("all_reduce", "naive", 4).finding()
    'rank 0 sends 3.0 × the buffer while the others send 1.0 ×'
    """
    if not isinstance(op, str) or not isinstance(algorithm, str) or (op, algorithm) not in MESSAGES:
        there_are = ", ".join(f"{op} {algorithm}" for op, algorithm in MESSAGES)
        raise ValueError(f"no plan for op={op!r} with algorithm={algorithm!r}: expected one of {there_are}")
    if not isinstance(num_ranks, int) or isinstance(num_ranks, bool) or num_ranks < 1:
        raise ValueError(f"num_ranks={num_ranks!r}: expected a whole number of 1 or more")
    if algorithm == "hierarchical" and num_ranks % NUM_NODES:
        raise ValueError(f"num_ranks={num_ranks}: expected a multiple of {NUM_NODES}, for a hierarchical all-reduce "
                         f"on {NUM_NODES} nodes")
    return make_plan(op, algorithm, num_ranks)


@cache
def make_plan(op: str, algorithm: str, num_ranks: int) -> Plan:
    """The plan itself, once for each collective: widgets ask for it again and again."""
    # Halving needs chunks that can be halved to the end; the ranks above the power of two wait (tree.py: folding).
    num_chunks = largest_power_of_two(num_ranks) if algorithm == "halving_doubling" else num_ranks
    steps = tuple(MESSAGES[op, algorithm](num_ranks))
    first = first_state(op, num_ranks, num_chunks)
    return Plan(op, algorithm, num_ranks, num_chunks, steps, all_states(first, steps),
                result_slots(op, num_ranks, num_chunks))


def first_state(op: str, n: int, num_chunks: int) -> Holdings:
    """What each rank holds before the first message."""
    def cell(rank: int, slot: int) -> Cell:
        if op == "all_to_all" and slot >= n:  # the output: a rank's own piece is already there
            return (Share(rank, rank),) if slot - n == rank else ()
        if op in STARTS_AT_ROOT and rank != 0 or op in ("all_gather", "gather") and slot != rank:
            return ()
        return (Share(rank, slot),)

    num_slots = 2 * n if op == "all_to_all" else num_chunks
    return Holdings(tuple(tuple(cell(rank, slot) for slot in range(num_slots)) for rank in range(n)))


def result_slots(op: str, n: int, num_chunks: int) -> frozenset[tuple[int, int]]:
    """(rank, slot) of every chunk of the result."""
    ranks, slots = range(n), range(num_chunks)
    if op in ("reduce_scatter", "scatter"):
        return frozenset((rank, rank) for rank in ranks)
    if op == "all_to_all":
        slots = range(n, 2 * n)
    return frozenset((rank, slot) for rank in (range(1) if op in FROM_ALL_TO_ONE else ranks) for slot in slots)


def all_states(first: Holdings, steps: tuple[Step, ...]) -> tuple[Holdings, ...]:
    """What all hold before the first step and after each one."""
    states, own = [first], first
    for number, step in enumerate(steps):
        if number == 0 or step.phase != steps[number - 1].phase:
            own = states[-1]  # what ranks fall back to when they have passed a partial sum on
        states.append(take_step(step, states[-1], own))
    return tuple(states)


def take_step(step: Step, state: Holdings, own: Holdings) -> Holdings:
    """What all hold when the messages of `step`, all read from `state`, have arrived."""
    grid = [list(cells) for cells in state.cells]
    if step.passes_on:
        for message in step.messages:
            for slot in message.chunks:
                grid[message.src][slot] = own.cells[message.src][slot]
    for message in step.messages:
        for slot, into in zip(message.chunks, message.into):
            # From `state` and not from `grid`: all messages of a step travel at the same time.
            arriving = state.cells[message.src][slot]
            kept = state.cells[message.dst][into] if message.kind == "add" else ()
            grid[message.dst][into] = add_cells(kept, arriving)
    return Holdings(tuple(map(tuple, grid)))


def add_cells(*cells: Cell) -> Cell:
    """The sum of cells; a share in several of them is counted several times."""
    counts: dict[tuple[int, int], int] = {}
    for share in (share for cell in cells for share in cell):
        counts[share.rank, share.chunk] = counts.get((share.rank, share.chunk), 0) + share.times
    return tuple(Share(rank, chunk, num) for (rank, chunk), num in sorted(counts.items()))
