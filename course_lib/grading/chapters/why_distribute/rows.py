"""Exercise 1.5: a reader on every rank that takes its own rows."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from course_lib.grading.exercise import Traffic, Trial
from course_lib.grading.spent import Spent, most
from course_lib.grading.tensors import TensorExercise

SHORT_ROW = ("rows of different lengths cannot be stacked: the last one has no token behind it, so it is no whole row, "
             "and (len(tokens) - 1) // s are")


class ShardedRows(TensorExercise):
    number = "1.5"
    function = "my_rows"
    points = 3
    budget = "nothing is sent, each row read once"
    operations = frozenset()
    hints = (
        "How many whole rows are there? A row of s needs s + 1 tokens, the last one being the answer to the one "
        "before. Which of them are yours?",
        "Row i is the slice of tokens that begins at i s and has s + 1 of them. A range takes a start, an end and a "
        "step: yours begins at your rank.",
        "mine = range(..., num_rows, ...)   # begins at which row, in steps of what?\n"
        "return torch.stack([tokens[i * s: ...] for i in mine])",
    )

    def trials(self, seed: int) -> list[Trial]:
        generator = torch.Generator().manual_seed(seed)
        made = []
        for n, length, s in ((2, 41, 4), (3, 36, 4), (3, 100, 7), (1, 23, 5), (4, 4 * 6 + 1, 6)):
            text = torch.randint(0, 256, (length,), generator=generator)
            made.append(Trial([[text.clone(), s] for _ in range(n)], f"{n} ranks, {length} tokens, rows of {s}"))
        return made

    @staticmethod
    def run(function: Callable, inputs: list[Any]) -> dict[str, Any]:
        try:
            return TensorExercise.run(function, inputs)
        except RuntimeError as error:
            if "equal size" in str(error):
                error.add_note(SHORT_ROW)
            raise

    def expected(self, inputs: list[list[Any]]) -> list[Tensor]:
        text, s = inputs[0]
        return [rows_of(text, s, range(r, (len(text) - 1) // s, len(inputs))) for r in range(len(inputs))]

    def mistakes(self, inputs: list[list[Any]]) -> Iterable[tuple[str, list[Tensor]]]:
        (text, s), n = inputs[0], len(inputs)
        num_rows = (len(text) - 1) // s
        right = self.expected(inputs)
        yield "every rank reads every row: n devices then learn the same from each", (
            [rows_of(text, s, range(num_rows))] * n)
        yield ("the rows lack the token that follows: without it the last one has no answer",
               [rows[:, :s] for rows in right])
        each = -(-num_rows // n)
        yield ("each rank reads a block of its own: no row is read twice, but rank r should begin at row r and step "
               "by n, so that all ranks together read the text in order"), [
            rows_of(text, s, range(r * each, min((r + 1) * each, num_rows))) for r in range(n)]
        whole = num_rows // n
        yield ("each rank reads a block of its own: no row is read twice, but rank r should begin at row r and step "
               "by n, so that all ranks together read the text in order"), [
            rows_of(text, s, range(r * whole, (r + 1) * whole)) for r in range(n)]
        yield "rank r starts at row r but reads all that follow: step by the number of ranks", [
            rows_of(text, s, range(r, num_rows)) for r in range(n)]
        yield "the last row of some rank is missing: (len(tokens) - 1) // s rows are whole", [
            rows_of(text, s, range(r, num_rows - 1, n)) for r in range(n)]
        last = (len(text) - (s + 1)) // (s + 1) + 1
        yield "rows overlap in one token: row i starts at i s and not at i (s + 1)", [
            torch.stack([text[i * (s + 1): (i + 1) * (s + 1)] for i in range(r, last, n)]) if r < last
            else text.new_empty(0, s + 1) for r in range(n)]

    def bound(self, trial: Trial) -> int:
        return 0

    def spent(self, trial: Trial, answers: list[Any], traffic: Traffic) -> list[Spent]:
        (text, s), n = trial.inputs[0], trial.world_size
        each = [len(rows) for rows in self.given(answers)]
        read = Spent("read", max(each), -(-((len(text) - 1) // s) // n), "row", rank=most(each))
        return [read, *super().spent(trial, answers, traffic)]


def rows_of(text: Tensor, s: int, rows: range) -> Tensor:
    """The rows (len(rows), s + 1)."""
    return torch.stack([text[i * s: i * s + s + 1] for i in rows]) if len(rows) else text.new_empty(0, s + 1)
