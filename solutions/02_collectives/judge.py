"""Chapter 2: what ranks send each other, and what alpha and beta say about it.

Exercises 2.7 and 2.8: what alpha and beta say about the algorithm, and about the largest model.

    n  ranks    g  ranks in a node, k  nodes    M  bytes of the message    T = alpha + beta M for one message

Exercises 2.1 to 2.6: rings, a tree, everybody with everybody, and two nodes with a slow link between them.

    n  ranks, r this one      N  elements, M bytes of the whole message      chunk c: the c-th of n equal pieces
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from course_lib.costs.links import Link, collective_time, hardware_link
from course_lib.facts import LINKS, STEP_LATENCY
from course_lib.grading.compare import alike, describe, is_number
from course_lib.grading.exercise import Exercise, SentBytes, Trial, ranks_of
from course_lib.grading.kinds import NumberExercise, TensorExercise, counts_of, network_of_rates, whole_numbers
from course_lib.grading.on_rank import numbers
from course_lib.grading.spent import SMALLEST_SHOWN, Spent, highest
from course_lib.pictures.units import human_bytes

A100 = [hardware_link(name).bytes_per_s for name in ("NVLink 3 (A100)", "InfiniBand HDR")]
LEAST, MOST = 1.0, float(1 << 40)  # bytes: where a choice is looked at
TWO_RANKS = "two ranks move the same bytes either way: no beta to pay, so the ring never wins, math.inf"


class Crossover(Exercise):
    """Right is what chooses well: the time lost to the better choice, at the worst size of each link."""

    number = "2.7"
    budget = "on no link, and for no message, more than 1 % slower than the better of the two"
    tolerance = (1e-6, 0.0)
    run = staticmethod(numbers)
    errors = (("ZeroDivisionError", TWO_RANKS),)
    ALLOWED = 0.01

    def trials(self, seed: int) -> list[Trial]:
        example = Trial([[[10e-6, 1e-10, 4]]], "the example, 10 us, 10 GB/s, 4 ranks")
        source = random.Random(seed)
        links = [hardware_link(wire.name) for wire in LINKS if wire.technology in STEP_LATENCY]
        known, pairs = ([[link.alpha_s, link.beta_s_per_byte, n] for link in links for n in world_sizes]
                        for world_sizes in ((4, 8, 64, 1024), (2,)))
        drawn = [[10 ** source.uniform(-6, -3), 10 ** source.uniform(-12, -8), 2 ** source.randint(2, 14)]
                 for _ in range(200)]
        return [example, Trial([known], f"{len(known)} links and worlds of course_lib.facts"),
                Trial([drawn], "200 random ones"), Trial([pairs], f"two ranks, {len(pairs)} links")]

    def wrong(self, trial: Trial, answers: list[Any]) -> str | None:
        (given,), (cases,) = answers, trial.inputs
        if type(given) is not list or len(given) != len(cases):
            return f"it returned {describe(given)}: expected a number of bytes for each of the {len(cases)} cases"
        if bad := [value for value in given if not is_number(value) or math.isnan(value)]:
            return f"it returned {describe(bad[0])}: expected a number of bytes"
        loss, (alpha, beta, n), value = max((lost_share(case, value), case, value) for case, value in zip(cases, given))
        if loss <= self.ALLOWED:
            return None
        at = human_bytes(value) if math.isfinite(value) else "no size"
        why = TWO_RANKS if n == 2 else "which of the two times is too short?"
        return (f"alpha {1e6 * alpha:.3g} us, 1/beta {1 / beta / 1e9:.3g} GB/s, {n} ranks: who changes at {at} takes "
                f"up to {100 * loss:.3g} % longer than the better choice: {why}")

    def usage(self, trial: Trial, answers: list[Any], traffic: SentBytes) -> list[Spent]:
        worst = max(lost_share(case, value) for case, value in zip(trial.inputs[0], answers[0]))
        return [Spent("takes", worst, self.ALLOWED, "share", on=" longer than the better choice, at worst")]


def lost_share(case: Sequence[Any], crossover: float) -> float:
    """The share of time lost, at the worst size, by whoever takes doubling below `crossover` bytes and the ring above.

    case: alpha_s, beta_s_per_byte, n. Between the right crossover and the chosen one the wrong algorithm runs, worst
    right beside the chosen one.
    """
    alpha_s, beta_s_per_byte, n = case
    M = min(max(crossover, LEAST), MOST)
    doubling, ring = (collective_time("all_reduce", algorithm, M, n, Link(alpha_s, beta_s_per_byte))
                      for algorithm in ("recursive_doubling", "ring"))
    taken = [doubling] * (crossover > LEAST) + [ring] * (crossover < MOST)  # just below M, and just above
    return max(taken) / min(doubling, ring) - 1


class LargestModel(NumberExercise):
    """An all-reduce in rings: over NVLink in a node, over all cards of whole nodes (costs.network)."""

    number = "2.8"
    unit = "parameter"
    tolerance = (0.02, 0.0)
    budget = "a number of parameters, to 2 %"
    cases = (("the example, 3 nodes of 2", (3, 2, 10.0, 4.0, 1.0)),
             ("64 nodes of 8 A100, one second", (64, 8, 1.0, *A100)),
             ("2 nodes of 8 A100, one second", (2, 8, 1.0, *A100)),
             ("one node of 8 A100, one second", (1, 8, 1.0, *A100)),
             ("16 nodes of one A100, 2 seconds", (16, 1, 2.0, *A100)),
             ("4 nodes of 8 devices on PCIe 4.0, half a second", (4, 8, 0.5, 31.5e9, 25e9)))

    def solve(self, num_nodes: int, g: int, seconds: float, nvlink: float, card: float) -> float:
        gradient_bytes = 2
        wires = network_of_rates(g, nvlink, card)
        return seconds / wires.group(num_nodes * g).all_reduces_s(1.0)["ring"] / gradient_bytes

    def draw(self, source: random.Random) -> tuple[str, tuple[Any, ...]]:
        k, g, seconds = source.randint(3, 9), 2 ** source.randint(1, 2), source.randint(20, 60) / 10
        nvlink, card = source.randint(100, 900) * 1e9, source.randint(10, 60) * 1e9
        return (f"{k} nodes of {g}, {seconds:g} s, {nvlink / 1e9:g} and {card / 1e9:g} GB/s",
                (k, g, seconds, nvlink, card))


Inputs = list[list[Any]]
LARGE = 1 << 16  # elements a chunk, 262.1 kB: headers and padding do not show


def total(inputs: Inputs) -> Tensor:
    """The sum over all ranks, (N,)."""
    return torch.stack([tensor for tensor, *_ in inputs]).sum(dim=0)


def message_bytes(trial: Trial) -> int:
    """Bytes of what one rank brings."""
    return trial.inputs[0][0].nbytes


def as_of_two(n: int, tensor: Tensor) -> Tensor:
    """Two ranks have 8 bytes a number, others 4: room for what arrives has to be made for the numbers that come."""
    return tensor.double() if n == 2 else tensor


class Messages(TensorExercise):
    """A rank brings length(n, k) whole numbers, exact in any order of a sum; k at random, in the last trial LARGE."""

    length: ClassVar[Callable[[int, int], int]] = staticmethod(lambda n, k: n * k)
    world_sizes: ClassVar[tuple[int, ...]] = (3, 4, 2, 1)  # with 3 left and right differ, and it is no power of two
    example: ClassVar[tuple[tuple[int, ...], ...]]  # what each rank brings in the docstring
    besides: ClassVar[tuple[tuple[int, int], ...]] = ()  # ranks, elements: lengths that no k gives
    messages: ClassVar[Callable[[int], int]]  # that a rank of n may send

    def trials(self, seed: int) -> list[Trial]:
        generator = torch.Generator().manual_seed(seed)
        ks = torch.randint(2, 6, (len(self.world_sizes),), generator=generator).tolist()
        trials = [self.example_trial()]
        drawn = [(n, self.length(n, k)) for n, k in [*zip(self.world_sizes, ks), (4, LARGE)]]
        for n, N in [drawn[0], *self.besides, *drawn[1:]]:
            inputs = [[as_of_two(n, whole_numbers(generator, N))] for _ in range(n)]
            trials.append(Trial(inputs, f"{ranks_of(n)}, {N:,} element{'s' * (N > 1)} each"))
        return trials

    def example_trial(self) -> Trial:
        return Trial([[torch.tensor(brought).float()] for brought in self.example],
                     f"the example, {ranks_of(len(self.example))}")

    def most_messages(self, trial: Trial) -> int:
        return self.messages(trial.world_size)

    def solve(self, inputs: Inputs) -> list[Tensor]:
        return [total(inputs)] * len(inputs)

    def usage(self, trial: Trial, answers: list[Any], traffic: SentBytes) -> list[Spent]:
        """The ranks' own counts are held to the budget as well: the system's has room for more than a few elements."""
        spent = super().usage(trial, answers, traffic)
        if traffic.exact or self.spent_on:
            return spent
        return [highest("sent", counts_of(answers, "sent"), self.bound(trial), claimed=True), *spent]


class RingExercise(Messages):
    """Messages go to the neighbours `around` and to nobody else."""

    around: ClassVar[tuple[int, ...]] = (1,)  # 1: the right one, -1: the left one

    def flaw(self, trial: Trial, answers: list[Any], traffic: SentBytes) -> str | None:
        for r, sent in enumerate(traffic.sent):
            neighbours = [(r + on) % trial.world_size for on in self.around]
            for to, num_bytes in enumerate(sent):
                if to not in neighbours and num_bytes > traffic.slack(self.bound(trial)):
                    only = " and ".join(f"rank {each}" for each in neighbours)
                    return f"this is no ring: rank {r} sent {human_bytes(num_bytes)} to rank {to}, not only to {only}"
        return super().flaw(trial, answers, traffic)


class RingReduceScatter(RingExercise):
    number = "2.1"
    budget = (
        "each rank sends (n-1)/(2n) M bytes to each neighbour: n-1 half chunks to the right, n-1 to the left (of two "
        "ranks each is both neighbours)")
    example = (1, 2, 3, 4), (10, 20, 30, 40)
    messages = staticmethod(lambda n: 2 * (n - 1))
    spent_on = " to one neighbour"
    around = (1, -1)
    length = staticmethod(lambda n, k: 2 * n * k)

    def solve(self, inputs: Inputs) -> list[Tensor]:
        return list(total(inputs).chunk(len(inputs)))

    def bound(self, trial: Trial) -> int:
        n = trial.world_size
        return message_bytes(trial) * (n - 1) // n // (1 if n == 2 else 2)  # of two ranks each is both neighbours

    def sent_bytes(self, trial: Trial, traffic: SentBytes) -> list[int]:
        """Of each rank the bytes to the neighbour that gets more: the budget is that of one direction."""
        return [max(row) for row in traffic.sent]


class RingAllGather(RingExercise):
    number = "2.2"
    budget = "each rank sends n-1 pieces as long as they are, and 8 bytes with each for its length"
    example = (11,), (22, 33)
    messages = staticmethod(lambda n: 2 * (n - 1))
    sizes = (3, 1), (4, 1), (2, 1), (1, 1), (4, LARGE // 4)
    trials = Exercise.trials

    def draw_trial(self, generator: torch.Generator, n: int, unit: int) -> Trial:
        extra = torch.randint(0, 2, (n,), generator=generator).tolist()
        lengths = [unit * share + more for share, more in zip((4, 12, 7, 9), extra)]
        inputs = [[as_of_two(n, whole_numbers(generator, length))] for length in lengths]
        return Trial(inputs, f"{ranks_of(n)}, {', '.join(f'{length:,}' for length in lengths)} elements")

    def solve(self, inputs: Inputs) -> list[Tensor]:
        return [torch.cat([tensor for tensor, *_ in inputs])] * len(inputs)

    def bound(self, trial: Trial) -> int:
        """Of the rank whose right neighbour has the shortest piece, the only one that it does not pass on."""
        pieces = [tensor.nbytes for tensor, *_ in trial.inputs]
        return sum(pieces) - min(pieces) + 8 * (trial.world_size - 1) if trial.world_size > 1 else 0

    def least(self, trial: Trial) -> int:
        return (trial.world_size - 1) * sum(tensor.nbytes for tensor, *_ in trial.inputs)


class UnevenRingAllReduce(Messages):
    number = "2.3"
    in_place = True
    budget = ("each rank sends 2(n-1)/n M bytes, M being the tensor filled up to a multiple of 2n elements, and the "
              "gather's 8 (n-1) for lengths")
    example = (1, 2, 3), (10, 20, 30)
    besides = ((3, 12), (4, 1), (3, 13))  # 2n divides the length; shorter than n; one more than what 2n divides
    messages = staticmethod(lambda n: 4 * (n - 1))
    length = staticmethod(lambda n, k: n * k + (n > 1))

    def bound(self, trial: Trial) -> int:
        n, element = trial.world_size, trial.inputs[0][0].element_size()
        filled = -(-message_bytes(trial) // (2 * n * element)) * 2 * n * element
        return 2 * (n - 1) * filled // n + 8 * (n - 1)

    def least(self, trial: Trial) -> int:
        return 2 * (trial.world_size - 1) * message_bytes(trial)


class TreeReduce(Messages):
    number = "2.4"
    in_place = True
    budget = "ceil(log2 n) steps, in each of which a rank sends or receives one message; (n-1) M bytes in all"
    length = staticmethod(lambda n, k: k)
    world_sizes = (3, 4, 7, 9, 2, 1)  # more than eight have four steps; some trees are good for 9, and not for 7
    example = (5,), (7,), (9,)
    messages = staticmethod(lambda n: 1)

    def trials(self, seed: int) -> list[Trial]:
        generator = torch.Generator().manual_seed(seed)
        trials = []
        for plain in super().trials(seed):  # drawn first, so that dst does not change what the ranks bring
            n = plain.world_size
            dst = int(torch.randint(1, n, (), generator=generator)) if n > 1 else 0  # 0 would hide an ignored dst
            dst = 1 if plain.label.startswith("the example") else dst
            trials.append(Trial([[tensor, dst] for tensor, in plain.inputs], f"{plain.label}, dst={dst}"))
        return trials

    def wrong(self, trial: Trial, answers: list[Any]) -> str | None:
        """Only dst's tensor is an answer: what the others hold in the end is theirs."""
        dst, right = trial.inputs[0][1], total(trial.inputs)
        theirs = {"tensor": right, "returned": right}
        return super().wrong(trial, [answer if r == dst else theirs for r, answer in enumerate(answers)])

    def bound(self, trial: Trial) -> int:
        return message_bytes(trial) if trial.world_size > 1 else 0

    def least(self, trial: Trial) -> int:
        return (trial.world_size - 1) * message_bytes(trial)

    def usage(self, trial: Trial, answers: list[Any], traffic: SentBytes) -> list[Spent]:
        n, M, dst, least = trial.world_size, message_bytes(trial), trial.inputs[0][1], self.least(trial)
        spent = [Spent("sent", sum(self.sent_bytes(trial, traffic)), least, on=" together", who="the ranks",
                       slack=traffic.slack(least), note=traffic.note(), claimed=traffic.exact),
                 *super().usage(trial, answers, traffic)]
        if traffic.exact or M >= SMALLEST_SHOWN:  # in less, headers look like messages
            backwards = SentBytes([list(column) for column in zip(*traffic.sent)], traffic.exact)  # a broadcast's, then
            # Both take n-1 steps, so that no record could tell them apart: who sent to whom does.
            why = ("dst adds everything up itself: let others add on the way"
                   if all(traffic.sent[r][dst] >= M for r in range(n) if r != dst)
                   else "they add up in a row: in each step as many as can hand theirs to another one")
            spent.insert(1, Spent("took", fewest_steps(backwards, dst), steps_of_tree(n), "step", why=why,
                                  claimed=traffic.exact))
        return spent


def steps_of_tree(n: int) -> int:
    """The fewest steps in which n ranks can hand everything to one: ceil(log2 n)."""
    return (n - 1).bit_length()


def fewest_steps(traffic: SentBytes, src: int) -> int:
    """The fewest steps in which messages can have gone from src to all as they did, each rank telling one at a time.

    A rank learns it from whoever sent it most, and tells first those below whom most is still to be done.
    """
    n = len(traffic.sent)
    teller = {r: max(range(n), key=lambda q: traffic.sent[q][r]) for r in range(n) if r != src}

    def below(rank: int) -> int:
        longest_first = sorted((below(r) for r, by in teller.items() if by == rank), reverse=True)
        return max((step + further for step, further in enumerate(longest_first, start=1)), default=0)

    return below(src)


class AllToAll(Messages):
    number = "2.5"
    budget = "each rank sends (n-1)/n M bytes: every piece but the one that stays"
    example = (1, 2), (10, 20)
    messages = staticmethod(lambda n: n - 1)

    def solve(self, inputs: Inputs) -> list[Tensor]:
        sent = [tensor.chunk(len(inputs)) for tensor, *_ in inputs]  # sent[q][r]: from rank q to rank r
        return [torch.cat(arrived) for arrived in zip(*sent)]

    def difference(self, given: list[Any], expected: list[Tensor]) -> str:
        n = len(expected)  # what a place holds that nobody wrote to is random: no record could know it
        if all(isinstance(a, Tensor) and a.shape == b.shape
               and [alike(*pair) for pair in zip(a.chunk(n), b.chunk(n))] == [q != r for q in range(n)]
               for r, (a, b) in enumerate(zip(given, expected))):
            return "every rank lacks the piece that stays: nobody sends it, copy chunks[r] to place r"
        return super().difference(given, expected)

    def bound(self, trial: Trial) -> int:
        return message_bytes(trial) * (trial.world_size - 1) // trial.world_size


class TwoNodeAllReduce(Messages):
    number = "2.6"
    in_place = True
    budget = "each rank sends M/2 bytes to the other node"
    example = (1, 2), (10, 20), (100, 200), (1000, 2000)
    besides = ((4, 6),)  # two divides it, and four does not
    errors = (("index out of range",
               "N is even, and need not be a multiple of 4: [1, 2] has two halves and no quarters"),)
    messages = staticmethod(lambda n: 3)
    spent_on = " to the other node"
    world_sizes = (4, 4)

    def bound(self, trial: Trial) -> int:
        return message_bytes(trial) // 2

    def least(self, trial: Trial) -> int:
        return 2 * message_bytes(trial)  # each node needs all that the other one knows

    def sent_bytes(self, trial: Trial, traffic: SentBytes) -> list[int]:
        return [sum(traffic.sent[r][to] for to in range(4) if to // 2 != r // 2) for r in range(4)]

    def usage(self, trial: Trial, answers: list[Any], traffic: SentBytes) -> list[Spent]:
        spent = super().usage(trial, answers, traffic)
        through_one = min(self.sent_bytes(trial, traffic)) == 0  # another mistake than the same bytes of every rank
        return [replace(each, what="alone sent") for each in spent] if through_one else spent
