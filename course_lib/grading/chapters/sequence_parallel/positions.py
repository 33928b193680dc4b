"""Exercise 7.3, open-ended: who gets which tokens of a row of documents, so that all ranks have as much to do.

    R  ranks      T  tokens in the row, of documents of the given lengths      a token reads its document up to itself
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from course_lib.grading.compare import describe, plain, readable
from course_lib.grading.exercise import Exercise, Traffic, Trial, ranks_of
from course_lib.grading.spent import Spent, most


class DocumentPositions(Exercise):
    number = "7.3"
    function = "my_document_positions"
    points = 3
    compared = "returned"
    right = "every token is on one rank"
    budget = "par: no rank has more to do than the mean"
    hints = (
        "What does a document's token cost, depending on where in the document it stands? Which two pieces of a "
        "document cost as much together as any other such pair?",
        "Zigzag within each document: cut it into 2R pieces, and rank r gets pieces r and 2R-1-r. If every document is "
        "dealt evenly, the row is.",
        "start, own = 0, []\n"
        "for length in lengths:\n"
        "    pieces = torch.arange(start, start + length).chunk(...)\n"
        "    own += [pieces[r], ...]\n"
        "    start += length\n"
        "return torch.cat(own)",
    )

    def trials(self, seed: int) -> list[Trial]:
        source = torch.Generator().manual_seed(seed)
        made = []
        for R, num_documents in ((2, 2), (3, 3), (1, 2), (4, 5)):
            lengths = [2 * R * length for length in torch.randint(2, 9, (num_documents,), generator=source).tolist()]
            lengths[0] += 12 * R  # no two layouts are the same
            made.append(Trial([lengths] * R, f"{ranks_of(R)}, documents of {lengths} tokens"))
        return made

    @staticmethod
    def run(function: Callable, inputs: list[int]) -> dict[str, Any]:
        return {"returned": plain(function(list(inputs)))}

    def wrong(self, trial: Trial, answers: list[Any]) -> str | None:
        R, T, given = trial.world_size, sum(trial.inputs[0]), self.given(answers)
        for rank, own in enumerate(given):
            if not readable(own) or own.dtype != torch.int64 or own.shape != (T // R,):
                return f"rank {rank} returned {describe(own)}: expected the positions of T/R tokens, int64[{T // R}]"
        counts = torch.cat(given).sort().values
        if torch.equal(counts, torch.arange(T)):
            return None
        held = counts.tolist()
        missing = next((token for token in range(T) if held.count(token) != 1), None)
        if missing is None:
            return f"there are positions outside of the row: it has {T} tokens, from 0 on"
        return (f"token {missing} is on {held.count(missing)} ranks: each of the row's {T} tokens has to be on one. "
                "Positions are counted in the row, not in the document")

    def spent(self, trial: Trial, answers: list[Any], traffic: Traffic) -> Sequence[Spent]:
        lengths, R, given = trial.inputs[0], trial.world_size, self.given(answers)
        costs = torch.cat([torch.arange(1, length + 1) for length in lengths])
        work = [costs[own].sum().item() for own in given]
        why = next((why for why, layout in layouts(lengths, R)
                    if all(set(own.tolist()) == set(right) for own, right in zip(given, layout))), "")
        return [Spent("has more to do than the mean, by", max(work) * R / sum(work) - 1, 0.0, "share", rank=most(work),
                      why=why, limit="par {}", slack=1e-9)]


def layouts(lengths: Sequence[int], R: int) -> Iterator[tuple[str, list[list[int]]]]:
    """Likely layouts, and what is uneven about each."""
    row = list(range(sum(lengths)))
    yield "contiguous pieces of the row: documents end within them, and late tokens read more", contiguous(row, R)
    yield ("every R-th token of the row, and so of each document: near, but rank R-1's tokens read more than rank 0's",
           striped(row, R))
    yield ("this is zigzag of the whole row, as if it were one document: a document begins with short work again, so "
           "deal each of them by itself"), zigzag(row, R)
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    documents = [list(range(start, start + length)) for start, length in zip(starts, lengths)]
    yield ("each document is cut into R pieces, of which the last costs most: give a rank an early and a late one",
           joined(documents, R, contiguous))
    yield ("rank r has the pieces r and r + R: the second one is R pieces later for all, so that nothing evens out. "
           "Take 2R-1-r", joined(documents, R, not_turned))


def contiguous(tokens: list[int], R: int) -> list[list[int]]:
    each = len(tokens) // R
    return [tokens[r * each:(r + 1) * each] for r in range(R)]


def striped(tokens: list[int], R: int) -> list[list[int]]:
    return [tokens[r::R] for r in range(R)]


def zigzag(tokens: list[int], R: int) -> list[list[int]]:
    pieces = contiguous(tokens, 2 * R)
    return [pieces[r] + pieces[2 * R - 1 - r] for r in range(R)]


def not_turned(tokens: list[int], R: int) -> list[list[int]]:
    pieces = contiguous(tokens, 2 * R)
    return [pieces[r] + pieces[r + R] for r in range(R)]


def joined(documents: list[list[int]], R: int, layout: Callable[[list[int], int], list[list[int]]]) -> list[list[int]]:
    """Each document dealt by itself."""
    dealt = [layout(document, R) for document in documents]
    return [[token for each in dealt for token in each[r]] for r in range(R)]
