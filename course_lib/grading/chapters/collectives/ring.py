"""Exercises 2.1 to 2.3: reduce-scatter and all-gather around a circle, and the all-reduce that is both."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from course_lib.grading.chapters.collectives.trials import (
    Inputs,
    message_bytes,
    total,
    trials_of,
    turned,
    wrong_on_all,
    wrong_pieces,
)
from course_lib.grading.exercise import Traffic, Trial
from course_lib.grading.spent import amount
from course_lib.grading.tensors import TensorExercise


class Ring(TensorExercise):
    """Messages go to the right neighbour and to nobody else, from each rank the same number of bytes."""

    def least(self, trial: Trial) -> int:
        return trial.world_size * self.bound(trial)

    def flaw(self, trial: Trial, answers: list[Any], traffic: Traffic) -> str | None:
        n = trial.world_size
        for r in range(n):
            for to in range(n):
                if to != (r + 1) % n and traffic.sent[r][to] > traffic.slack(self.bound(trial)):
                    return (f"this is no ring: rank {r} sent {amount(traffic.sent[r][to])} to rank {to}, its right "
                            f"neighbour is rank {(r + 1) % n}")
        return super().flaw(trial, answers, traffic)


class RingReduceScatter(Ring):
    number = "2.1"
    function = "my_ring_reduce_scatter"
    points = 3
    budget = "each rank sends n-1 chunks, (n-1)/n M bytes"
    hints = (
        "Follow one chunk. Chunk c has to come home to rank c last, so it starts one further on, at rank c+1: "
        "the first chunk that rank r sends is chunk r-1.",
        "Begin with partial = chunks[r - 1]. In step s = 0, 1, ... the partial sum of chunk r-2-s arrives: "
        "partial = received + chunks[(r - 2 - s) % n].",
    )

    def trials(self, seed: int) -> list[Trial]:
        return trials_of(seed, lambda n, k: n * k)

    def expected(self, inputs: Inputs) -> list[Tensor]:
        return list(total(inputs).chunk(len(inputs)))

    def bound(self, trial: Trial) -> int:
        return message_bytes(trial) * (trial.world_size - 1) // trial.world_size

    def mistakes(self, inputs: Inputs) -> Iterable[tuple[str, list[Tensor]]]:
        n, right = len(inputs), self.expected(inputs)
        x = [tensor.chunk(n) for tensor, *_ in inputs]  # x[r][c]
        yield ("every rank ends with its right neighbour's chunk: you return chunk r+1 where chunk r is asked",
               turned(right, 1))
        yield ("every rank ends with its left neighbour's chunk: you return chunk r-1 where chunk r is asked",
               turned(right, -1))
        yield ("every chunk lacks its last share: there are n-1 steps, and one is missing",
               [right[(r + 1) % n] - x[(r + 1) % n][(r + 1) % n] for r in range(n)])
        yield ("every chunk went one step too far and got a share twice: there are n-1 steps",
               [right[r - 1] + x[r][r - 1] for r in range(n)])
        yield ("only the last two shares are in the sum: what is passed on is what has just been received, before "
               "this rank's own share is added", [x[(r + 1) % n][r] + x[r][r] for r in range(n)])
        yield "every rank returns its own chunk r, with nobody else's share in it", [x[r][r] for r in range(n)]
        yield "every rank returns the whole sum: only chunk r is asked", [total(inputs)] * n
        yield "the sum is divided by the number of ranks: the sum is asked, not the mean", [c / n for c in right]

    def waste(self, trial: Trial, traffic: Traffic) -> str:
        return "one chunk a step is enough, not the whole tensor"


class RingAllGather(Ring):
    number = "2.2"
    function = "my_ring_all_gather"
    points = 2
    budget = "each rank sends n-1 pieces, (n-1)/n M bytes of the result's M"
    hints = (
        "In each step pass on what you received in the step before; in the first step, your own piece.",
        "Make room for n pieces, out = tensor.new_empty(n, len(tensor)), and put your own into out[r]. In step s you "
        "send out[(r - s) % n] and receive out[(r - s - 1) % n].",
    )

    def trials(self, seed: int) -> list[Trial]:
        return trials_of(seed, lambda n, k: k)

    def expected(self, inputs: Inputs) -> list[Tensor]:
        return [torch.cat([tensor for tensor, *_ in inputs])] * len(inputs)

    def bound(self, trial: Trial) -> int:
        return message_bytes(trial) * (trial.world_size - 1)

    def mistakes(self, inputs: Inputs) -> Iterable[tuple[str, list[Tensor]]]:
        n, x = len(inputs), [tensor for tensor, *_ in inputs]
        yield ("the pieces lie in the order of arrival, the own one first: the piece of rank q belongs at place q",
               [torch.cat([x[r - s] for s in range(n)]) for r in range(n)])
        yield ("the pieces lie in the order of arrival, the own one last: the piece of rank q belongs at place q",
               [torch.cat([x[r - s] for s in reversed(range(n))]) for r in range(n)])
        yield ("every piece that arrives is the left neighbour's own: pass on the newest piece, not your own again",
               [torch.cat([x[r] if q == r else x[r - 1] for q in range(n)]) for r in range(n)])
        yield ("every piece lies one place too far to the left: in step s the piece of rank r-s-1 arrives",
               [torch.cat([x[(q + 1) % n] for q in range(n)])] * n)
        yield "the pieces are stacked, shape (n, N/n): one after the other, (N,), is asked", [torch.stack(x)] * n

    def cause(self, given: list[Any], inputs: Inputs) -> str | None:
        expected, known = self.expected(inputs), super().cause(given, inputs)
        if known:
            return known
        if len(inputs) > 2 and wrong_on_all(given, expected, lambda r: r + 1):
            return "rank r lacks the piece of rank r+1, the last to arrive: there are n-1 steps, and one is missing"
        if wrong_on_all(given, expected, lambda r: r):
            return "every rank lacks its own piece: nobody sends it, copy it into its place before the first step"
        return None

    def waste(self, trial: Trial, traffic: Traffic) -> str:
        return "send one piece a step, not the whole result"


class RingAllReduce(TensorExercise):
    number = "2.3"
    function = "my_ring_all_reduce"
    points = 3
    in_place = True
    budget = "each rank sends 2(n-1)/n M bytes, M being the tensor filled up to a multiple of n elements"
    hints = (
        "A sum of chunks, everywhere: what does rank r hold after a reduce-scatter, and what is missing? Zeros at the "
        "end make any length a multiple of n, and do not change a sum.",
        "filled = tensor.new_zeros(-(-len(tensor) // n) * n), with the tensor at its beginning; then gather what "
        "scatter returns, and tensor.copy_ the first len(tensor) elements.",
    )

    def trials(self, seed: int) -> list[Trial]:
        return trials_of(seed, lambda n, k: n * k + (n > 1))

    def expected(self, inputs: Inputs) -> list[Tensor]:
        return [total(inputs)] * len(inputs)

    def bound(self, trial: Trial) -> int:
        n, element = trial.world_size, trial.inputs[0][0].element_size()
        filled = -(-message_bytes(trial) // (n * element)) * n * element
        return 2 * (n - 1) * filled // n

    def least(self, trial: Trial) -> int:
        return 2 * (trial.world_size - 1) * message_bytes(trial)

    def mistakes(self, inputs: Inputs) -> Iterable[tuple[str, list[Tensor]]]:
        n, right = len(inputs), total(inputs)
        N = len(right)
        filled = torch.zeros(-(-N // n) * n)
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
        whole = len(right) // n * n
        heads = [tensor[:whole] if isinstance(tensor, Tensor) and tensor.dim() == 1 else tensor for tensor in given]
        if whole < len(right) and all(wrong_pieces(head, right[:whole], n) == [] for head in heads):
            return (f"only the first {whole} of {len(right)} elements are right, n equal chunks, and the rest is left "
                    "out: fill up with zeros to a multiple of n")
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
