"""Exercise 6.6: the norm of gradients of which every rank has a piece."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from course_lib.grading.calls import num_calls, record_calls
from course_lib.grading.chapters.models import Inputs
from course_lib.grading.chapters.zero.shards import ShardExercise
from course_lib.grading.compare import part, plain
from course_lib.grading.exercise import Trial, ranks_of
from course_lib.grading.spent import Spent

NOTHING_TO_CLIP = "A norm of 0 is not above max_norm: divide only where it is, and all else stays as it is."
Clipped = dict[str, Any]  # of one rank: the norm that is returned, and its pieces afterwards


class ClipOverShards(ShardExercise):
    number = "6.6"
    function = "my_clip_over_shards"
    points = 2
    words = "is"
    tolerance = (1e-5, 0.0)  # torch adds 1e-6 to the norm before it divides: either is right
    budget = "one all-reduce of one number"
    hints = (
        "Norms do not add up, squares do. Each rank knows the squares of its own pieces: what has to be sent, and when "
        "is the root taken?",
        "One number goes round: the sum of the squares of all elements of one's own pieces. Its sum over the ranks has "
        "the norm as its root. Then compare: only a norm above max_norm changes anything, and a norm of 0 divides "
        "nothing.",
        "square = ...  # of all own pieces together, a tensor\n"
        "dist.all_reduce(square)\n"
        "norm = square.sqrt().item()\n"
        "if ...:\n"
        "    for piece in pieces:\n"
        "        piece *= ...\n"
        "return norm",
    )

    def trials(self, seed: int) -> list[Trial]:
        generator = torch.Generator().manual_seed(seed)
        made = []
        for n, max_norm, norm in ((3, 1.0, "larger than 1"), (2, 100.0, "smaller than 100"), (1, 1.0, "larger than 1"),
                                  (4, 2.0, "larger than 2"), (2, 0.0, "of 0, which is not above 0")):
            ranks = [{"pieces": [torch.randn(size, generator=generator, dtype=torch.float64) * (r + 1) * (max_norm > 0)
                                 for size in (5, 2, 7)], "max_norm": max_norm} for r in range(n)]
            made.append(Trial(ranks, f"{ranks_of(n)}, a norm {norm}"))
        return made

    @staticmethod
    def run(function: Callable, inputs: dict[str, Any]) -> dict[str, Any]:
        try:
            returned, calls = record_calls(function, inputs["pieces"], inputs["max_norm"])
        except ZeroDivisionError as error:
            error.add_note(NOTHING_TO_CLIP)
            raise
        norm = returned if isinstance(returned, int | float) else returned.item() if (
            isinstance(returned, Tensor) and returned.numel() == 1) else f"a {type(returned).__name__}"
        return {"norm": norm if isinstance(norm, str) else float(norm), "calls": calls,
                "pieces": [plain(piece) for piece in inputs["pieces"]]}

    @staticmethod
    def scaled(inputs: Inputs, norm: Callable[[list[float]], float] | None = None,
               factor: Callable[[float, float], float] = lambda norm, limit: limit / norm if norm > limit else 1.0
               ) -> list[Clipped]:
        """What each rank returns and has, where `norm` makes one of the ranks' sums of squares."""
        squares = [sum(piece.square().sum().item() for piece in rank["pieces"]) for rank in inputs]
        norms = [norm(squares) if norm else square**0.5 for square in squares]
        return [{"norm": value, "pieces": [piece * factor(value, rank["max_norm"]) for piece in rank["pieces"]]}
                for value, rank in zip(norms, inputs)]

    def expected(self, inputs: Inputs) -> list[Clipped]:
        return self.scaled(inputs, lambda squares: sum(squares)**0.5)

    def mistakes(self, inputs: Inputs) -> Iterable[tuple[str, list[Clipped]]]:
        n = len(inputs)
        yield ("each rank clips by the norm of its own pieces, so every piece is scaled by another number and the "
               "gradient points elsewhere: add up the squares of all ranks", self.scaled(inputs))
        yield ("the ranks' norms are added up: squares add up, norms do not, so take the root after the all-reduce",
               self.scaled(inputs, lambda squares: sum(square**0.5 for square in squares)))
        yield ("the squares are added up, but the root is not taken", self.scaled(inputs, sum))
        yield ("the squares are averaged over the ranks: the pieces are parts of one gradient, so they add up",
               self.scaled(inputs, lambda squares: (sum(squares) / n)**0.5))
        yield ("a norm below max_norm is scaled up to it: clipping only makes gradients shorter",
               self.scaled(inputs, lambda squares: sum(squares)**0.5,
                           lambda norm, limit: limit / norm if norm else 1.0))
        yield ("the norm is right, but the pieces are as they were: write into them, as piece *= does",
               self.scaled(inputs, lambda squares: sum(squares)**0.5, lambda norm, limit: 1.0))

    def wrong(self, trial: Trial, answers: list[Any]) -> str | None:
        said = super().wrong(trial, answers)
        pieces = part(answers[0], "pieces")
        divided = said and isinstance(pieces, list) and any(
            isinstance(piece, Tensor) and piece.dtype == torch.float64 and piece.isnan().any() for piece in pieces)
        return f"the pieces are not numbers any more. {NOTHING_TO_CLIP}" if divided else said

    def given(self, answers: list[Any]) -> list[Any]:
        return [{name: part(answer, name) for name in ("norm", "pieces")} for answer in answers]

    def kept(self, trial: Trial, answers: list[Any]) -> list[Spent]:
        return [num_calls(answers, 1, "add up the squares of all own pieces first")]

    def bound(self, trial: Trial) -> int:
        return 16

    def waste(self, answers: list[Any]) -> str:
        return "send the sum of the squares, not the pieces"
