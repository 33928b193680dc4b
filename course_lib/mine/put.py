"""A run with the reader's answers in it: `launch(TrainedBy(train, answers), ...)` for `launch(train, ...)`.

On each rank the answers take their places, the run goes on as it always does, and in the end all ranks' ledgers are
added up. An answer that fails in training is named, with its line.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from course_lib.mine.book import Book
from course_lib.mine.find import Answers
from course_lib.mine.ledger import AnswerFailed, Ledger, describe_failure
from course_lib.mine.replaced import stand_in
from course_lib.mine.slots import places


@contextmanager
def put(answers: Answers, compare: bool = True) -> Iterator[Ledger]:
    """On a rank: inside, `answers` stand in the places of the course's functions. Yields whose code did what.

    compare: what an answer gives the first time in a group is compared with what the course's own would give.
    """
    ledger = Ledger()
    with stand_in(places(Book(answers.notebooks, answers.numbers, ledger, compare))):
        try:
            yield ledger
        except AnswerFailed:
            raise
        except Exception as error:
            if named := describe_failure(error):
                raise AnswerFailed(named) from error
            raise


@dataclass(frozen=True)
class Account:
    """What each exercise's answer did in a run, on all ranks: `calls`, and `sent` bytes of the one step that counts.

    sent[""] are the bytes of calls that came from no answer.
    """

    calls: dict[str, int]
    sent: dict[str, int]

    @classmethod
    def of(cls, ledgers: list[Ledger]) -> "Account":
        """All ranks' ledgers added up: calls and bytes by exercise."""
        calls, sent = (sum(counters, Counter()) for counters in
                       ([each.calls for each in ledgers], [each.sent for each in ledgers]))
        return cls(dict(calls), {number: round(num_bytes) for number, num_bytes in sent.items()})


@dataclass(frozen=True)
class TrainedBy:
    """A function to launch: `task`, with `answers` in it. Returns (what task returns, Account) on every rank."""

    task: Callable[..., Any]
    answers: Answers
    compare: bool = True

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Any, Account]:
        with put(self.answers, self.compare) as ledger:
            result = self.task(*args, **kwargs)
        everyones: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everyones, ledger)
        return result, Account.of(everyones)
