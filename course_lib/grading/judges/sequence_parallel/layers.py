"""Exercises 7.1 and 7.5: sequence parallelism's two doors, and a function that runs again in backward.

    t  ranks      x (B, T/t, D)  this rank's tokens      w, h (B, T, D)  of each rank      c  the gradient that comes in
    7.1: h = exp(w gather(x))    s = scatter(h)    loss = sum(c s)
    7.5: function(x) = dropout(gelu(x W1)) W2      x (T, D), W1 (D, F), W2 (F, D), F = 8 D
"""

from typing import Any

import torch
from torch import Tensor

from course_lib.grading.compare import alike, describe
from course_lib.grading.exercise import Exercise, SentBytes, Trial, ranks_of
from course_lib.grading.judges.calls import num_calls
from course_lib.grading.judges.models import ROUNDING, Inputs, doubles
from course_lib.grading.judges.split import PartsExercise, normal
from course_lib.grading.on_rank import sequence_parallel as on_rank
from course_lib.grading.on_rank.plain import plain
from course_lib.grading.spent import Spent
from course_lib.pictures.units import human_bytes

RNG_BYTES = 16 * 1024  # for the state of the generator, 5,056 bytes, where it is counted, and what else is small


class GatherAndScatter(PartsExercise):
    number = "7.1"
    parts = {"gathered": "gather(x)", "scattered": "scatter(h)", "w": "the gradient of w", "x": "the gradient of x"}
    gloo_over_ring = 2.5  # its reduce-scatter is an all-reduce
    budget = "one collective each way, four in all; 4(t-1) M bytes sent by each rank, M those of its own tokens"
    run = staticmethod(on_rank.gather_and_scatter)
    sizes = (3, 2, 2, 2), (2, 1, 3, 2), (1, 2, 2, 1), (4, 2, 16, 64)

    def draw_trial(self, generator: torch.Generator, t: int, B: int, c: int, D: int) -> Trial:
        ranks = [{"x": normal(generator, B, c, D, scale=0.5), "w": normal(generator, B, t * c, D, scale=0.5),
                  "c": normal(generator, B, c, D)} for _ in range(t)]
        return Trial(ranks, f"{ranks_of(t)}, {human_bytes(8 * B * c * D)} of tokens on each")

    def example_trial(self) -> Trial:
        """x is 1 and 2, and exp(w x) is 1 and 2 on rank 0, 10 and 20 on rank 1."""
        def tokens(*values: float) -> Tensor:
            return doubles(values)[None, :, None]

        ranks = [{"x": tokens(x), "w": tokens(*h).log() / tokens(1, 2), "c": tokens(1)}
                 for x, h in ((1, (1, 2)), (2, (10, 20)))]
        return Trial(ranks, "the example, 2 ranks, a token each")

    def solve(self, inputs: Inputs) -> list[dict[str, Any]]:
        xs, ws = ([rank[name].clone().requires_grad_() for rank in inputs] for name in ("x", "w"))
        whole = torch.cat(xs, 1)
        pieces = sum(torch.exp(w * whole) for w in ws).chunk(len(xs), 1)
        torch.autograd.backward(pieces, [rank["c"] for rank in inputs])
        return [{"gathered": plain(whole), "scattered": plain(piece), "w": plain(w.grad), "x": plain(x.grad)}
                for piece, w, x in zip(pieces, ws, xs)]

    def local_usage(self, trial: Trial, answers: list[Any]) -> list[Spent]:
        return [num_calls(answers, 4)]

    def bound(self, trial: Trial) -> int:
        return 4 * (trial.world_size - 1) * trial.inputs[0]["x"].nbytes


class RecomputeFunction(Exercise):
    number = "7.5"
    tolerance = ROUNDING
    budget = "kept between forward and backward: one copy of x; `function` runs twice"
    parts = {"y": "the result", "x": "the gradient of x", "W1": "the gradient of W1", "W2": "the gradient of W2",
             "after": "the random number that is drawn after backward"}
    run = staticmethod(on_rank.recompute)

    def trials(self, seed: int) -> list[Trial]:
        made = []
        for T, D, p, layers in ((3, 4, 0.5, 1), (3, 4, 0.5, 2), (4, 2, 0.0, 1), (64, 64, 0.1, 1), (64, 64, 0.1, 2)):
            generator = torch.Generator().manual_seed(len(made) + seed * bool(made))  # the example is always the same
            tensors = {"x": normal(generator, T, D), "W1": normal(generator, D, 8 * D, scale=D**-0.5),
                       "W2": normal(generator, 8 * D, D, scale=D**-0.5)}
            made.append(Trial([{"given": tensors, "dy": normal(generator, T, D), "p": p, "layers": layers,
                                "seed": (seed * bool(made) + 17 * len(made)) % 10_000}],
                              f"{'' if made else 'the example, '}x of {T} tokens with {D} numbers, dropout {p}"
                              + ", used twice, one after the other" * (layers > 1)))
        return made

    def solve(self, inputs: Inputs) -> list[Any]:
        return self.select_parts([on_rank.recompute(lambda function, x: function(x), inputs[0])])

    def difference(self, given: list[Any], expected: list[Any]) -> str:
        name = next(name for name in self.parts if not alike(given[0][name], expected[0][name], self.tolerance))
        return f"{self.parts[name]} is {describe(given[0][name])}: expected {describe(expected[0][name])}"

    def flaw(self, trial: Trial, answers: list[Any], traffic: SentBytes) -> str | None:
        by_torch = answers[0]["by_torch"]
        return "it uses torch.utils.checkpoint: that is what you are asked to write" if by_torch else None

    def usage(self, trial: Trial, answers: list[Any], traffic: SentBytes) -> list[Spent]:
        answer, x = answers[0], trial.inputs[0]["given"]["x"]
        layers = trial.inputs[0]["layers"]
        return [Spent("keeps", answer["kept"], layers * x.nbytes, on=" until backward", slack=layers * RNG_BYTES,
                      claimed=True, decides=True),
                Spent("ran the function", answer["runs"], 2 * layers, "time", claimed=True)]
