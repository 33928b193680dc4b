"""What every rank of a pipeline does, in which order: a schedule as data, and those that were published.

    p  ranks        m  micro-batches        v  chunks of layers a rank holds        r  a rank

A schedule is data: the generators here write it, a reader's hand may write it, `validate` judges it, `simulate` gives
it times, and `PipelineParallel` runs it on ranks, the same object every time. SCHEDULES is all of the published ones;
the trainer, the widget, the planner, tests and benchmarks have their names from there, in the papers' spelling.

A plain pipeline gives rank r stage r. An interleaved one deals the stages out like cards: rank r holds r, p + r,
2p + r ... A V goes down the ranks and comes back up: rank r holds stages r and 2p - 1 - r, so that rank 0 has both the
first layers and the loss. No generator knows what anything costs; `simulate` does. Each takes any p >= 1 and m >= 1:
where a paper asks for more micro-batches than there are, its order is kept and the absent ones are left out.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import wraps
from inspect import signature
from typing import NamedTuple

KINDS = ("F", "B", "I", "W")  # forward, whole backward, backward for the input, backward for the weights


class Action(NamedTuple):
    """One piece of work of a rank: `kind` of KINDS, for one micro-batch, on one of the rank's chunks of layers."""

    kind: str
    microbatch: int
    chunk: int = 0

    def __str__(self) -> str:
        return f"{self.kind}{self.microbatch}" + (f".{self.chunk}" if self.chunk else "")


@dataclass(frozen=True)
class Schedule:
    """What every rank does, in order.

    `actions[rank]` is that rank's list. `stages[rank][chunk]` is the stage, counted along the model from 0, that the
    rank holds as that chunk: rank 0 of a plain pipeline has (0,), of an interleaved one on 4 ranks (0, 4), of one in
    the shape of a V (0, 7). Nothing is checked here: `validate(schedule)` says what is wrong with it.
    """

    name: str
    num_microbatches: int
    stages: tuple[tuple[int, ...], ...]
    actions: tuple[tuple[Action, ...], ...]

    @property
    def num_ranks(self) -> int:
        """p, the ranks of the pipeline."""
        return len(self.actions)

    @property
    def num_stages(self) -> int:
        """Stages of the model on all ranks: p times the chunks that each holds."""
        return sum(len(chunks) for chunks in self.stages)

    def where(self, stage: int) -> tuple[int, int]:
        """The (rank, chunk) that holds this stage of the model."""
        for rank, chunks in enumerate(self.stages):
            if stage in chunks:
                return rank, chunks.index(stage)
        raise ValueError(f"stage {stage} is on no rank; the schedule places stages {sorted(sum(self.stages, ()))}")

    def positions(self) -> Iterator[tuple[int, int, Action]]:
        """(rank, position in its list, action) of all actions."""
        for rank, actions in enumerate(self.actions):
            for position, action in enumerate(actions):
                yield rank, position, action


def in_flight(actions: Sequence[Action]) -> list[int]:
    """After the start of each of a rank's actions: how many activations, of a chunk for a micro-batch each, are held.

    The order alone decides it: F puts activations on the shelf and B takes them away. Where backward is split, I still
    needs to leave most of them for W: W takes them away.
    """
    held, counts = 0, []
    for action in actions:
        held += action.kind == "F"
        counts.append(held)
        held -= action.kind in "BW"
    return counts


@dataclass(frozen=True)
class Published:
    """One of SCHEDULES: `row(p, m)` is the Schedule, or `row(p, m, v)` where a rank holds as many chunks as one likes.
    """

    name: str  # as its paper writes it
    generate: Callable[..., Schedule]
    chunks: int | None  # of layers on a rank; None: v
    splits_backward: bool  # into I and W
    source: str
    in_torch: str  # the class of torch.distributed.pipelining with the same order, "" where there is none

    def __call__(self, p: int, m: int, v: int = 2) -> Schedule:
        return self.generate(p, m) if self.chunks else self.generate(p, m, v)


SCHEDULES: dict[str, Published] = {}


def published(name: str, source: str, chunks: int | None = 1, splits_backward: bool = False, in_torch: str = ""
              ) -> Callable[[Callable[..., Schedule]], Callable[..., Schedule]]:
    """Make the generator below a row of SCHEDULES. It refuses numbers of ranks, micro-batches and chunks that are none.
    """
    def add(generate: Callable[..., Schedule]) -> Callable[..., Schedule]:
        names = tuple(signature(generate).parameters)

        @wraps(generate)
        def check_counts(*args: int, **kwargs: int) -> Schedule:
            for number, count in (dict(zip(names, args)) | kwargs).items():
                if isinstance(count, bool) or not isinstance(count, int) or count < 1:
                    raise ValueError(f"{number}={count!r}: expected a whole number of 1 or more")
            return generate(*args, **kwargs)

        SCHEDULES[name] = Published(name, check_counts, chunks, splits_backward, source, in_torch)
        return check_counts

    return add


def find_schedule(name: str) -> Published:
    """The row of SCHEDULES called `name`: "ZB-H1", or on a command line zb-h1. ValueError, with all names, for another.
    """
    def plain(text: str) -> str:
        return text.lower().replace(" ", "-").replace("_", "-")

    for known, row in SCHEDULES.items():
        if plain(known) == plain(name):
            return row
    raise ValueError(f"schedule={name!r}: expected one of {', '.join(SCHEDULES)}")


@published("naive", "the schedule without a pipeline")
def naive(p: int, m: int = 1) -> Schedule:
    """One micro-batch at a time, down through all ranks and back: one rank works, the others wait."""
    order = [Action(kind, i) for i in range(m) for kind in "FB"]
    return one_stage_each("naive", p, m, lambda r: order)


@published("GPipe", "Huang et al. 2019, GPipe")
def gpipe(p: int, m: int) -> Schedule:
    """All forward passes, then all backward passes; m micro-batches in flight.

    In the paper backward takes the last micro-batch first; like today's libraries we keep the order of forward, which
    costs the same time and memory.

    >>> " ".join(map(str, gpipe(p=2, m=3).actions[0]))  # of rank 0
    'F0 F1 F2 B0 B1 B2'
    """
    order = [Action(kind, i) for kind in "FB" for i in range(m)]
    return one_stage_each("GPipe", p, m, lambda r: order)


@published("1F1B", "Narayanan et al. 2021 (PipeDream-Flush, Megatron-LM), section 2.2.1", in_torch="Schedule1F1B")
def one_f_one_b(p: int, m: int) -> Schedule:
    """As soon as the first micro-batch comes back, forward and backward take turns; min(p - r, m) in flight.

    >>> " ".join(map(str, one_f_one_b(p=2, m=3).actions[0]))
    'F0 F1 B0 F2 B1 B2'
    """
    forwards, backwards = all_microbatches("F", m), all_microbatches("B", m)
    # p - 1 - r stages lie behind rank r: when its first gradient can be back, so many micro-batches have passed it.
    return one_stage_each("1F1B", p, m, lambda r: take_turns(forwards, backwards, warmup=p - 1 - r))


@published("interleaved 1F1B", "Narayanan et al. 2021, section 2.2.2", chunks=None, in_torch="ScheduleInterleaved1F1B")
def interleaved_1f1b(p: int, m: int, v: int) -> Schedule:
    """1F1B on v chunks a rank: a bubble of 1/v, v times the messages, more in flight.

    Micro-batches go in groups of p: the group passes a rank's chunk 0, then its chunk 1 and so on. The paper takes
    multiples of p; here the last group may be smaller (and then leaves gaps).

    >>> interleaved_1f1b(p=2, m=2, v=2).stages  # of each rank
    ((0, 2), (1, 3))
    """
    groups = range(0, m, p)
    # The last group may reach beyond m: make_schedule leaves those actions out.
    forwards = [Action("F", i, c) for g in groups for c in range(v) for i in range(g, g + p)]
    backwards = [Action("B", i, c) for g in groups for c in reversed(range(v)) for i in range(g, g + p)]

    def order(r: int) -> Iterable[Action]:
        # Down and up again between chunks of one group, which is why a rank is two forwards ahead of the next one.
        warmup = 2 * (p - 1 - r) + (v - 1) * p if v > 1 else p - 1 - r
        return take_turns(forwards, backwards, warmup)

    return make_schedule("interleaved 1F1B", m, [range(r, v * p, p) for r in range(p)], order)


@published("ZB-H1", "Qi et al. 2023, Zero Bubble Pipeline Parallelism, section 2.3", splits_backward=True)
def zb_h1(p: int, m: int) -> Schedule:
    """1F1B with backward split: W waits, rank r's for r micro-batches, and fills the gaps at the end.

    A third of 1F1B's bubble when F, I and W take equally long; p in flight on every rank.

    >>> " ".join(map(str, zb_h1(p=2, m=3).actions[1]))
    'F0 I0 F1 I1 W0 F2 I2 W1 W2'
    """
    # A longer head start and a shorter lag, rank by rank: so all hold p activations.
    return one_stage_each("ZB-H1", p, m, lambda r: delay_weights(m, ahead=p - 1 - r, lag=r))


@published("ZB-H2", "Qi et al. 2023, Zero Bubble Pipeline Parallelism, section 2.3", splits_backward=True)
def zb_h2(p: int, m: int) -> Schedule:
    """ZB-H1 with twice the head start: the first gap is filled with forward passes, 2p - 1 in flight.

    No bubble when F, I and W take equally long, m >= 2p - 1 and the ranks start their next step one after the other.
    """
    return one_stage_each("ZB-H2", p, m, lambda r: delay_weights(m, ahead=2 * (p - 1 - r), lag=2 * r))


@published("ZB-V", "Qi et al. 2023, Zero Bubble Pipeline Parallelism, section 6", chunks=2, splits_backward=True,
           in_torch="ScheduleZBVZeroBubble")
def zb_v(p: int, m: int) -> Schedule:
    """No bubble at the memory of 1F1B: two chunks in a V, backward split; 2p half-sized activations in flight.

    As ZB-H2 it needs m >= 2p - 1 and ranks that start their next step one after the other.

    >>> zb_v(p=4, m=8).stages  # rank 0 has the first stage and the last
    ((0, 7), (1, 6), (2, 5), (3, 4))
    """
    # With fewer micro-batches the order is that of n of them: `make_schedule` leaves out those that are not there.
    n = max(m, 2 * p - 1)

    def order(r: int) -> Iterator[Action]:
        f0, f1, i0, i1, w0, w1 = (iter(all_microbatches(kind, n, c)) for kind in "FIW" for c in (0, 1))
        yield from in_turns(2 * (p - r) - 1, f0)  # as long as the first micro-batch is on its way down and up the V
        yield from in_turns(r, f1, f0)
        yield from in_turns(p - r, f1, i1, w1)  # and until its gradient has come down and up again
        yield from in_turns(n - 2 * p + r + 1, f0, i0, w0, f1, i1, w1)
        yield from in_turns(p - r - 1, i0, w0, f1, i1, w1)  # no micro-batch is left to begin
        yield from in_turns(r, i0, i1)  # others wait for I, nobody for W
        yield from in_turns(p - r, i0, w0)
        yield from (*w1, *w0)

    return make_schedule("ZB-V", m, v_shape(p), order)


@published("DualPipe-V", "DeepSeek-AI 2024 (DeepSeek-V3 report), section 3.2.1, and its library; the V: Qi et al. 2025",
           chunks=2, splits_backward=True)
def dualpipe_v(p: int, m: int) -> Schedule:
    """Forward of one micro-batch beside backward of another, which hide each other's communication.

    The V half of DualPipe: an F and a B side by side in the main part are what the library overlaps. Backward is split
    only where a W fills a gap. 2p + 1 half-sized activations in flight; the library asks for m >= 2p.
    """
    # As in ZB-V: the order of n micro-batches, of which those that are not there are left out.
    n = max(m, 2 * p)

    def order(r: int) -> Iterator[Action]:
        f0, f1 = iter(all_microbatches("F", n, 0)), iter(all_microbatches("F", n, 1))
        backwards = {c: iter(all_microbatches("B", n, c)) for c in (0, 1)}
        waiting: deque[Action] = deque()  # weight gradients

        def whole(c: int) -> Action:
            return next(backwards[c])

        def split(c: int) -> Action:
            now = next(backwards[c])
            waiting.append(now._replace(kind="W"))
            return now._replace(kind="I")

        yield from in_turns(2 * (p - r - 1), f0)
        yield from in_turns(r + 1, f0, f1)
        for _ in range(p - r - 1):
            yield from (split(1), waiting.popleft(), next(f1))
        for _ in range(n - 2 * p + r + 1):
            yield from (next(f0), whole(1), next(f1), whole(0))
        for _ in range(p - r - 1):
            yield from (whole(1), next(f1), whole(0))
        for number in range(2 * (r + 1)):  # from the middle on, weights wait
            yield (whole if number <= r else split)(1 - number % 2)
        for _ in range(p - r - 1):
            yield from (waiting.popleft(), split(0))
        yield from waiting

    return make_schedule("DualPipe-V", m, v_shape(p), order)


def all_microbatches(kind: str, m: int, chunk: int = 0) -> list[Action]:
    """This kind of action for every micro-batch."""
    return [Action(kind, i, chunk) for i in range(m)]


def in_turns(rounds: int, *queues: Iterator[Action]) -> Iterator[Action]:
    """The next of each queue, `rounds` times."""
    for _ in range(rounds):
        for queue in queues:
            yield next(queue)


def take_turns(forwards: list[Action], backwards: list[Action], warmup: int) -> list[Action]:
    """`warmup` forwards, then one forward and one backward in turns, then the backwards that are left."""
    # With fewer micro-batches than ranks there is nothing more to warm up with.
    warmup = min(warmup, len(forwards))
    turns = [action for pair in zip(forwards[warmup:], backwards) for action in pair]
    return [*forwards[:warmup], *turns, *backwards[len(forwards) - warmup:]]


def delay_weights(m: int, ahead: int, lag: int) -> Iterator[Action]:
    """`ahead` forwards, then F and I in turns, each W `lag` micro-batches after its I; what is left at the end."""
    forwards, weights = iter(all_microbatches("F", m)), iter(all_microbatches("W", m))
    yield from in_turns(min(ahead, m), forwards)
    for i in range(m):
        yield from in_turns(i + ahead < m, forwards)
        yield Action("I", i)
        # W has no reader but the optimiser, so it may wait until nothing else can be done.
        yield from in_turns(i >= lag, weights)
    yield from weights


def one_stage_each(name: str, p: int, m: int, order: Callable[[int], Iterable[Action]]) -> Schedule:
    """The Schedule with one stage on each rank, in which rank r does `order(r)`."""
    return make_schedule(name, m, [(r,) for r in range(p)], order)


def v_shape(p: int) -> list[Sequence[int]]:
    """Stages of each rank when the model goes down the ranks and up again: r and 2p - 1 - r."""
    return [(r, 2 * p - 1 - r) for r in range(p)]


def make_schedule(name: str, m: int, stages: Sequence[Sequence[int]], order: Callable[[int], Iterable[Action]]
                  ) -> Schedule:
    """The Schedule in which rank r does `order(r)`, micro-batches from m on left out."""
    actions = (tuple(action for action in order(r) if action.microbatch < m) for r in range(len(stages)))
    return Schedule(name, m, tuple(map(tuple, stages)), tuple(actions))
