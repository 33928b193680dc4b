"""Exercises 2.1 to 2.3: reduce-scatter both ways around a circle, all-gather, and the all-reduce that is both."""

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor

from course_lib.grading.chapters.collectives.trials import (
    LARGE,
    Inputs,
    message_bytes,
    random_number,
    total,
    trials_of,
    turned,
    wrong_on_all,
    wrong_pieces,
)
from course_lib.grading.exercise import Traffic, Trial, ranks_of
from course_lib.grading.spent import amount
from course_lib.grading.tensors import TensorExercise, whole_numbers


class Ring(TensorExercise):
    """Messages go to the neighbours `around` and to nobody else."""

    around: ClassVar[tuple[int, ...]] = (1,)  # 1: the right one, -1: the left one

    def least(self, trial: Trial) -> int:
        return trial.world_size * self.bound(trial)

    def flaw(self, trial: Trial, answers: list[Any], traffic: Traffic) -> str | None:
        n = trial.world_size
        for r in range(n):
            neighbours = [(r + on) % n for on in self.around]
            for to in range(n):
                if to not in neighbours and traffic.sent[r][to] > traffic.slack(self.bound(trial)):
                    who = (f"its right neighbour is rank {neighbours[0]}" if len(neighbours) == 1
                           else f"its neighbours are ranks {neighbours[0]} and {neighbours[1]}")
                    return f"this is no ring: rank {r} sent {amount(traffic.sent[r][to])} to rank {to}, {who}"
        return super().flaw(trial, answers, traffic)


class RingReduceScatter(Ring):
    number = "2.1"
    function = "my_ring_reduce_scatter"
    points = 4
    budget = "each rank sends (n-1)/(2n) M bytes to each neighbour: n-1 half chunks to the right, n-1 to the left"
    spent_on = " to one neighbour"
    around = (1, -1)
    hints = (
        "Follow one half of chunk c that travels right. It has to come home to rank c last, so it starts one further "
        "on, at rank c+1: the first that rank r sends to the right belongs to chunk r-1. Now look into a mirror.",
        "To the right: begin with the first half of chunk r-1; in step s that of chunk r-2-s arrives. To the left, in "
        "the mirror: begin with the second half of chunk r+1; in step s that of chunk r+2+s arrives.",
        "rightwards, leftwards = halves[r - 1, 0], halves[...]\n"
        "for step in range(n - 1):\n"
        "    from_left = exchange(rightwards, right, torch.empty_like(rightwards), left)\n"
        "    from_right = ...\n"
        "    rightwards = from_left + halves[(r - 2 - step) % n, 0]\n"
        "    leftwards = ...\n"
        "return torch.cat([rightwards, leftwards])",
    )

    def trials(self, seed: int) -> list[Trial]:
        return trials_of(seed, lambda n, k: 2 * n * k)

    def expected(self, inputs: Inputs) -> list[Tensor]:
        return list(total(inputs).chunk(len(inputs)))

    def bound(self, trial: Trial) -> int:
        n = trial.world_size
        return message_bytes(trial) * (n - 1) // n // (1 if n == 2 else 2)  # of two ranks each is both neighbours

    def sent(self, trial: Trial, traffic: Traffic) -> list[int]:
        """To the neighbour that gets more."""
        return [max(row) for row in traffic.sent]

    def mistakes(self, inputs: Inputs) -> Iterable[tuple[str, list[Tensor]]]:
        n, right = len(inputs), self.expected(inputs)
        x = [tensor.view(n, 2, -1) for tensor, *_ in inputs]  # x[r][c, half]
        y = total(inputs).view(n, 2, -1)

        def joined(half: Callable[[int, int, int], Tensor]) -> list[Tensor]:
            """half(r, h, on): what rank r has of half h, which travels to r + on."""
            return [torch.cat([half(r, h, on) for h, on in ((0, 1), (1, -1))]) for r in range(n)]

        yield ("the two halves of every chunk have changed places: the first one travels right, the second one left",
               [torch.cat([*reversed(chunk.chunk(2))]) for chunk in right])
        yield ("every half ends one rank before its home: what travels right starts with chunk r-1, what travels left "
               "with chunk r+1, neither with chunk r", joined(lambda r, h, on: y[(r + on) % n, h]))
        yield ("every half lacks its last share: there are n-1 steps, and one is missing",
               joined(lambda r, h, on: y[(r + on) % n, h] - x[(r + on) % n][(r + on) % n, h]))
        yield ("only the last two shares are in the sum: what is passed on is what has just been received, before "
               "this rank's own share is added", joined(lambda r, h, on: x[(r + on) % n][r, h] + x[r][r, h]))
        yield ("every chunk went one step too far and got a share twice: there are n-1 steps",
               joined(lambda r, h, on: y[(r - on) % n, h] + x[r][(r - on) % n, h]))
        yield ("every rank returns its own chunk r, with nobody else's share in it",
               [x[r][r].flatten() for r in range(n)])
        yield "every rank returns the whole sum: only chunk r is asked", [total(inputs)] * n
        yield "the sum is divided by the number of ranks: the sum is asked, not the mean", [c / n for c in right]

    def cause(self, given: list[Any], inputs: Inputs) -> str | None:
        known = super().cause(given, inputs)
        wrong = [wrong_pieces(answer, chunk, 2) for answer, chunk in zip(given, self.expected(inputs))]
        for half, way, start in ((0, "right", "r-1"), (1, "left", "r+1")):
            if not known and all(pieces == [half] for pieces in wrong):
                return (f"the half that travels {way} is wrong, the other one right: it starts with chunk {start}, and "
                        "its indices are the other's in a mirror")
        return known

    def waste(self, trial: Trial, traffic: Traffic) -> str:
        n, M = trial.world_size, message_bytes(trial)
        if n > 2 and any(traffic.sent[r][(r + 1) % n] == 0 or traffic.sent[r][r - 1] == 0 for r in range(n)):
            return "all goes one way around: let one half of every chunk go the other way, at the same time"
        one_step = "half a chunk each way a step is enough"
        return f"{one_step}, not the whole tensor" if max(self.sent(trial, traffic)) >= M else one_step


class RingAllGather(Ring):
    number = "2.2"
    function = "my_ring_all_gather"
    points = 3
    budget = "each rank sends n-1 pieces as long as they are, and 8 bytes with each for its length"
    hints = (
        "In each step pass on what you received in the step before; in the first step, your own piece. Before a piece "
        "can be received there has to be room for it: what must the receiver know?",
        "Two messages a step: the length of the newest piece as a tensor of one int64, then the piece itself, received "
        "into a new tensor of that length. In step s you send the piece of rank r-s and receive that of rank r-s-1.",
        "pieces = [None] * n\n"
        "pieces[r] = tensor\n"
        "for step in range(n - 1):\n"
        "    newest = pieces[(r - step) % n]\n"
        "    length = exchange(torch.tensor([len(newest)]), right, torch.empty(1, dtype=torch.int64), left)\n"
        "    pieces[...] = exchange(newest, right, ..., left)\n"
        "return torch.cat(pieces)",
    )

    def trials(self, seed: int) -> list[Trial]:
        generator = torch.Generator().manual_seed(seed)
        made = []
        for n, unit in ((3, 1), (4, 1), (2, 1), (1, 1), (4, LARGE // 4)):
            lengths = [unit * share + random_number(generator, 0, 2) for share in (4, 12, 7, 9)[:n]]
            inputs = [[whole_numbers(generator, length)] for length in lengths]
            made.append(Trial(inputs, f"{ranks_of(n)}, {', '.join(f'{length:,}' for length in lengths)} elements"))
        return made

    def expected(self, inputs: Inputs) -> list[Tensor]:
        return [torch.cat([tensor for tensor, *_ in inputs])] * len(inputs)

    def bound(self, trial: Trial) -> int:
        """Of the rank whose right neighbour has the shortest piece, the only one that it does not pass on."""
        pieces = [tensor.nbytes for tensor, *_ in trial.inputs]
        return sum(pieces) - min(pieces) + 8 * (trial.world_size - 1) if trial.world_size > 1 else 0

    def least(self, trial: Trial) -> int:
        return (trial.world_size - 1) * sum(tensor.nbytes for tensor, *_ in trial.inputs)

    def mistakes(self, inputs: Inputs) -> Iterable[tuple[str, list[Tensor]]]:
        n, x = len(inputs), [tensor for tensor, *_ in inputs]
        longest = max(map(len, x))
        filled = [torch.cat([piece, piece.new_zeros(longest - len(piece))]) for piece in x]
        yield ("the pieces lie in the order of arrival, the own one first: the piece of rank q belongs at place q",
               [torch.cat([x[r - s] for s in range(n)]) for r in range(n)])
        yield ("the pieces lie in the order of arrival, the own one last: the piece of rank q belongs at place q",
               [torch.cat([x[r - s] for s in reversed(range(n))]) for r in range(n)])
        yield ("every piece that arrives is the left neighbour's own: pass on the newest piece, not your own again",
               [torch.cat([x[r] if q == r else x[r - 1] for q in range(n)]) for r in range(n)])
        yield ("every piece lies one place too far to the left: in step s the piece of rank r-s-1 arrives",
               [torch.cat([x[(q + 1) % n] for q in range(n)])] * n)
        yield ("rank r lacks the piece of rank r+1, the last to arrive: there are n-1 steps, and one is missing",
               [torch.cat([x[q] for q in range(n) if q != (r + 1) % n or n == 1]) for r in range(n)])
        yield ("every rank lacks its own piece: nobody sends it, put it into its place before the first step",
               [torch.cat([x[q] for q in range(n) if q != r]) if n > 1 else x[0][:0] for r in range(n)])
        yield ("the pieces are filled up with zeros to the length of the longest: each is as long as it was",
               [torch.cat(filled)] * n)

    def waste(self, trial: Trial, traffic: Traffic) -> str:
        return "send one piece a step, as long as it is: not filled up, and not the whole result"


class RingAllReduce(TensorExercise):
    number = "2.3"
    function = "my_ring_all_reduce"
    points = 3
    in_place = True
    budget = ("each rank sends 2(n-1)/n M bytes, M being the tensor filled up to a multiple of 2n elements, and the "
              "gather's 8 (n-1) for lengths")
    hints = (
        "A sum of chunks, everywhere: what does rank r hold after a reduce-scatter, and what is missing? Zeros at the "
        "end make any length a multiple of 2n, and do not change a sum.",
        "Copy the tensor to the beginning of new zeros as long as the next multiple of 2n. Scatter these, gather what "
        "scatter returns, and write the first len(tensor) elements back into the tensor itself.",
        "N = len(tensor)\n"
        "filled = tensor.new_zeros(...)   # N rounded up to a multiple of 2n\n"
        "filled[:N] = tensor\n"
        "tensor.copy_(...)   # both functions, one inside the other, and then how many elements of it?",
    )

    def trials(self, seed: int) -> list[Trial]:
        return trials_of(seed, lambda n, k: n * k + (n > 1))

    def expected(self, inputs: Inputs) -> list[Tensor]:
        return [total(inputs)] * len(inputs)

    def bound(self, trial: Trial) -> int:
        n, element = trial.world_size, trial.inputs[0][0].element_size()
        filled = -(-message_bytes(trial) // (2 * n * element)) * 2 * n * element
        return 2 * (n - 1) * filled // n + 8 * (n - 1)

    def least(self, trial: Trial) -> int:
        return 2 * (trial.world_size - 1) * message_bytes(trial)

    def mistakes(self, inputs: Inputs) -> Iterable[tuple[str, list[Tensor]]]:
        n, right = len(inputs), total(inputs)
        N = len(right)
        filled = torch.zeros(-(-N // (2 * n)) * 2 * n)
        filled[:N] = right
        for by in range(1, n):
            yield ("the chunks are right, but lie in the wrong order: the all-gather takes rank r's piece for chunk r, "
                   "so the reduce-scatter has to leave chunk r there",
                   [torch.cat(turned(filled.chunk(n), by))[:N]] * n)
        yield "the sum is divided by the number of ranks: the sum is asked, not the mean", [right / n] * n
        yield ("a share is added a second time: the all-gather moves complete sums, and overwrites what lies there",
               [right + tensor for tensor, *_ in inputs])
        for root in range(n):
            yield (f"only rank {root} has the sum: it has to travel back to the others",
                   [right if r == root else inputs[r][0] for r in range(n)])

    def cause(self, given: list[Any], inputs: Inputs) -> str | None:
        n, right = len(inputs), total(inputs)
        whole = len(right) // (2 * n) * 2 * n
        heads = [tensor[:whole] if isinstance(tensor, Tensor) and tensor.dim() == 1 else tensor for tensor in given]
        if whole < len(right) and all(wrong_pieces(head, right[:whole], n) == [] for head in heads):
            return (f"only the first {whole} of {len(right)} elements are right, n equal chunks, and the rest is left "
                    "out: fill up with zeros to a multiple of 2n")
        if whole == len(right) and wrong_on_all(given, self.expected(inputs), lambda r: r + 1):
            return "rank r lacks chunk r+1, the last to arrive in the all-gather: there are n-1 steps, one is missing"
        return super().cause(given, inputs)

    def waste(self, trial: Trial, traffic: Traffic) -> str:
        M = message_bytes(trial)
        for root in range(trial.world_size):
            around = [rank for rank in range(trial.world_size) if rank != root]
            if traffic.sent_by(root) >= len(around) * M and all(traffic.sent_by(r) < 1.5 * M for r in around):
                return (f"everything goes through rank {root}, in and out again, while the others wait: let chunks go "
                        "around the ring, so that all send the same")
        return "send chunks, not the whole tensor: a reduce-scatter, then an all-gather"
