"""Whose code did what in a run: how often each answer was called, what it sent, and which one an error came from."""

import functools
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction

from course_lib.grading import recorded
from course_lib.mine.cells import answer_in_traceback, answer_on_stack
from course_lib.runtime.instruments.communication import CommunicationLog
from course_lib.runtime.instruments.recordings import open_recording


class AnswerFailed(RuntimeError):
    """An answer that passed its check raised in training, or gave what its place cannot use."""


@dataclass
class Ledger:
    """What one rank's run did by exercise: `calls` of the whole run, `sent` bytes of what was recorded."""

    calls: Counter[str] = field(default_factory=Counter)
    sent: Counter[str] = field(default_factory=Counter)

    def count_calls(self, number: str, function: Callable) -> Callable:
        """`function`, whose calls are counted as those of exercise `number`."""
        @functools.wraps(function)
        def call(*args: object, **kwargs: object) -> object:
            self.calls[number] += 1
            return function(*args, **kwargs)

        return call

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Around a call of torch.distributed: what it sends was sent by the innermost answer on the stack."""
        log = open_recording(CommunicationLog)
        before = len(log.events) if log else 0
        yield
        if log:
            sent = sum((event.sent_bytes or Fraction(0) for event in log.events[before:]), Fraction(0))
            self.sent[answer_on_stack(sys._getframe())] += sent


def describe_failure(error: BaseException) -> str:
    """Which answer `error` came from, in which line, and what to do; "" where it came through none."""
    number, where = answer_in_traceback(error.__traceback__)
    return describe(number, f"{type(error).__name__}: {error}", f" in {where}") if number else ""


def describe(number: str, what: str, where: str = "") -> str:
    """Sentences about an answer that failed in training, with the way out."""
    chapter = int(number.partition(".")[0])
    function, _ = recorded.of_chapter(chapter)["exercises"][number]
    return (f"your {number}, {function}{where}: {what}. It passes its check, and training asks more of it. To train "
            f"with the course's own in its place: --without {number}")
