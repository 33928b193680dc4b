"""Exercise 6.6: the norm of gradients of which every rank has a piece."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from course_lib.grading.chapters.models import counted
from course_lib.grading.chapters.zero.shards import sent_too_much
from course_lib.grading.exercise import Exercise, Traffic, Trial
from course_lib.grading.tensors import described, plain

NEAR = 1e-5  # torch adds 1e-6 to the norm before it divides: either is right
Scaled = tuple[float, list[list[Tensor]]]  # the norm that is returned, and each rank's pieces afterwards


class ClipOverShards(Exercise):
    number = "6.6"
    function = "my_clip_over_shards"
    points = 2
    budget = "one all-reduce of one number"
    hints = (
        "Norms do not add up, squares do. Each rank knows the squares of its own pieces: what has to be sent, and when "
        "is the root taken?",
        "square = sum(piece.square().sum() for piece in pieces); dist.all_reduce(square); norm = square.sqrt(); then "
        "piece *= max_norm / norm for all pieces, where norm > max_norm.",
    )

    def trials(self, seed: int) -> list[Trial]:
        generator = torch.Generator().manual_seed(seed)
        made = []
        for n, max_norm, kind in ((3, 1.0, "larger"), (2, 100.0, "smaller"), (1, 1.0, "larger"), (4, 2.0, "larger")):
            ranks = [{"pieces": [torch.randn(size, generator=generator, dtype=torch.float64) * (r + 1)
                                 for size in (5, 2, 7)], "max_norm": max_norm} for r in range(n)]
            made.append(Trial(ranks, f"{n} rank{'s' * (n > 1)}, a norm {kind} than {max_norm:g}"))
        return made

    @staticmethod
    def run(function: Callable, inputs: dict[str, Any]) -> dict[str, Any]:
        returned, calls = counted(function, inputs["pieces"], inputs["max_norm"])
        norm = returned if isinstance(returned, int | float) else returned.item() if (
            isinstance(returned, Tensor) and returned.numel() == 1) else f"a {type(returned).__name__}"
        return {"norm": norm if isinstance(norm, str) else float(norm), "calls": calls,
                "pieces": [plain(piece) for piece in inputs["pieces"]]}

    @staticmethod
    def scaled(inputs: list[dict[str, Any]], norm: Callable[[list[float]], float] | None = None,
               factor: Callable[[float, float], float] = lambda norm, limit: min(1.0, limit / norm)) -> list[Any]:
        """What each rank returns and has, where `norm` makes one of the ranks' sums of squares."""
        squares = [sum(piece.square().sum().item() for piece in rank["pieces"]) for rank in inputs]
        norms = [norm(squares) if norm else square**0.5 for square in squares]
        return [(value, [piece * factor(value, rank["max_norm"]) for piece in rank["pieces"]])
                for value, rank in zip(norms, inputs)]

    def expected(self, inputs: list[dict[str, Any]]) -> list[Any]:
        return self.scaled(inputs, lambda squares: sum(squares)**0.5)

    def mistakes(self, inputs: list[dict[str, Any]]) -> Iterable[tuple[str, list[Any]]]:
        n = len(inputs)
        yield ("each rank clips by the norm of its own pieces, so every piece is scaled by another number and the "
               "gradient points elsewhere: add up the squares of all ranks", self.scaled(inputs))
        yield ("the ranks' norms are added up: squares add up, norms do not, so take the root after the all-reduce",
               self.scaled(inputs, lambda squares: sum(square**0.5 for square in squares)))
        yield ("the squares are added up, but the root is not taken", self.scaled(inputs, sum))
        yield ("the squares are averaged over the ranks: the pieces are parts of one gradient, so they add up",
               self.scaled(inputs, lambda squares: (sum(squares) / n)**0.5))
        yield ("a norm below max_norm is scaled up to it: clipping only makes gradients shorter",
               self.scaled(inputs, lambda squares: sum(squares)**0.5, lambda norm, limit: limit / norm))
        yield ("the norm is right, but the pieces are as they were: write into them, as piece *= does",
               self.scaled(inputs, lambda squares: sum(squares)**0.5, lambda norm, limit: 1.0))

    def judge(self, trial: Trial, answers: list[Any], traffic: Traffic) -> str | None:
        given = [(answer["norm"], answer["pieces"]) for answer in answers]
        expected = self.expected(trial.inputs)
        if all(map(alike, given, expected)):
            most = max(len(answer["calls"]) for answer in answers)
            if most > 1:
                return (f"{trial.label}: the result is right, but it took {most} calls where one will do: add up the "
                        "squares of all own pieces first")
            return sent_too_much(trial, answers, traffic, 16, "send the sum of the squares, not the pieces")
        cause = next((cause for cause, would in self.mistakes(trial.inputs) if all(map(alike, given, would))), None)
        return f"{trial.label}: {cause or self.first_difference(given, expected)}"

    @staticmethod
    def first_difference(given: list[Any], expected: list[Any]) -> str:
        rank = next(rank for rank, (has, right) in enumerate(zip(given, expected)) if not alike(has, right))
        (norm, pieces), (right_norm, right_pieces) = given[rank], expected[rank]
        said = f"{norm:g}" if isinstance(norm, float) else norm
        return (f"rank {rank} returned {said} and its first piece is {described(pieces[0])}: expected {right_norm:g} "
                f"and {described(right_pieces[0])}")

    def figures(self, trial: Trial, traffic: Traffic) -> str:
        return f"{trial.label}: one number sent by each rank, as allowed" if trial.world_size == 4 else ""


def alike(given: Any, expected: Any) -> bool:
    """Whether the norm and all pieces are the same, up to the 1e-6 that torch adds."""
    (norm, pieces), (right_norm, right_pieces) = given, expected
    return (isinstance(norm, float) and abs(norm - right_norm) <= NEAR * right_norm and len(pieces) == len(right_pieces)
            and all(isinstance(a, Tensor) and a.shape == b.shape and a.dtype == b.dtype
                    and torch.allclose(a, b, rtol=NEAR, atol=0) for a, b in zip(pieces, right_pieces)))
