"""The answers on one rank, each in the world of the group that it works for: `book.of("5.5", tp)(logits, targets, 0)`.

The cells run once for each group, since what they import as torch.distributed is that group: see world.py. What an
answer calls of other answers, my_ring_all_reduce of my_ring_reduce_scatter say, is counted as the other's.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.grading import recorded
from course_lib.grading.compare import describe as describe_tensor
from course_lib.groups.membership import Group, Member, member
from course_lib.mine.cells import Notebook, run_cells
from course_lib.mine.ledger import AnswerFailed, Ledger, describe
from course_lib.mine.world import World, modules_of

GRADIENTS_CHAPTER = 3  # whose all-reduces are chapter 2's ring
TOLERANCE = 1e-3  # of the largest number: another order of summation in 32 bits


class Book:
    """`numbers`: the exercises whose answers are used; all others are the course's."""

    def __init__(self, notebooks: Iterable[Notebook], numbers: Iterable[str], ledger: Ledger,
                 compares: bool = True) -> None:
        self.notebooks = {notebook.chapter: notebook for notebook in notebooks}
        self.numbers, self.ledger, self.compares = frozenset(numbers), ledger, compares
        self._compared: set[tuple[str, tuple[int, ...]]] = set()
        self._names: dict[tuple[int, tuple[int, ...]], dict[str, Any]] = {}

    def has(self, *numbers: str) -> bool:
        """Whether all of these exercises have an answer of the reader's."""
        return self.numbers.issuperset(numbers)

    def of(self, number: str, group: Group = None) -> Callable:
        """The answer to exercise `number`, for which `group` is the world."""
        chapter, me = int(number.partition(".")[0]), member(group)
        key = chapter, tuple(dist.get_process_group_ranks(me.group))
        if key not in self._names:
            self._names[key] = self._in_world(chapter, me)
        return self._names[key][recorded.of_chapter(chapter)["exercises"][number][0]]

    def _in_world(self, chapter: int, me: Member) -> dict[str, Any]:
        ring = chapter == GRADIENTS_CHAPTER and self.has("2.3")
        instead = {"all_reduce": lambda tensor, *_, **__: self.add_up(tensor, me)} if ring else {}
        names, _ = run_cells(self.notebooks[chapter], modules_of(World(me, self.ledger.sending, instead)))
        for number, (function, _) in recorded.of_chapter(chapter)["exercises"].items():
            if function in names:
                names[function] = self.ledger.count_calls(number, names[function])
        return names

    def add_up(self, tensor: Tensor, me: Member) -> None:
        """`tensor` becomes the sum over the ranks of `me`, in place: by the reader's ring, or by torch."""
        def sum_of_copies() -> Tensor:
            total = tensor.clone()
            dist.all_reduce(total, group=me.group)
            return total

        if self.has("2.3") and tensor.is_contiguous():
            self.compare("2.3", me, lambda: (self.of("2.3", me)(tensor.view(-1)), tensor)[1], sum_of_copies)
        else:
            dist.all_reduce(tensor, group=me.group)

    def is_first(self, number: str, group: Group = None) -> bool:
        """Whether nothing of the answer to `number` has been compared over `group` yet, and something shall be."""
        ranks = tuple(dist.get_process_group_ranks(member(group).group))
        return self.compares and (number, ranks) not in self._compared

    def compare(self, number: str, group: Group, given: Callable[[], Any], expected: Callable[[], Any]) -> Any:
        """given(), by the answer to `number` over `group`: a tensor, or several.

        The first time it is compared with expected(), by the course. AnswerFailed where they differ.
        """
        if not self.is_first(number, group):
            return given()
        ranks = tuple(dist.get_process_group_ranks(member(group).group))
        self._compared.add((number, ranks))
        right = [tensor.clone() for tensor in tensors(expected())]  # first: given() may work in place
        found = given()
        for mine, theirs in zip(tensors(found), right):
            differs = f"it gives {describe_tensor(mine)} over ranks {list(ranks)}: expected {describe_tensor(theirs)}"
            self.require(is_like(mine, theirs), number, differs)
        return found

    def require(self, is_right: bool, number: str, what: str) -> None:
        """AnswerFailed, where what the answer gave is not what its place in training needs."""
        if not is_right:
            raise AnswerFailed(describe(number, what))


def tensors(found: Tensor | Sequence[Tensor]) -> list[Tensor]:
    """One tensor or several as a list."""
    return [found] if isinstance(found, Tensor) else list(found)


def is_like(given: Any, expected: Tensor) -> bool:
    """Whether `given` has the expected shape, and the expected numbers to TOLERANCE."""
    if not isinstance(given, Tensor) or given.shape != expected.shape:
        return False
    largest = float(expected.detach().abs().max()) if expected.numel() else 0.0
    return torch.allclose(given.detach().double(), expected.detach().double(), 0.0, TOLERANCE * largest + 1e-12)
