"""How a chapter records answers that readers really give: wrong ones, with the cause, and right ones that are unusual.

    @wrong("2.1", "every half ends one rank before its home: what travels right starts with chunk r-1")
    def starts_with_its_own_chunk(tensor): ...

    DAYS = [wrong("1.2", "these are hours: a day has 24")(lambda *asked: 24 * my_training_days(*asked)), ...]

    @right("2.4", "halves the ranks that are left, the nearest first")
    def nearest_first(tensor, dst): ...

They stand in solutions/NN_name/wrong_answers.py and right_answers.py. `make mistakes` runs each wrong one and records
what it gives; from then on `check` and TrustedGrade say the sentence to whoever gives the same.
"""

from collections.abc import Callable
from dataclasses import dataclass

from course_lib.grading.registry import exercise


@dataclass(frozen=True)
class Answer:
    """An answer to the exercise `number`, and what is said of it."""

    number: str
    says: str
    function: Callable


class WrongAnswer(Answer):
    """says: the cause."""


class RightAnswer(Answer):
    """says: what is unusual."""


def wrong(number: str, says: str) -> Callable[[Callable], WrongAnswer]:
    """Decorate an answer to the exercise `number`, which takes the name of the exercise's function.

    says: the cause in a sentence; or words that the check says of it by itself, as of an error or an excess.
    """
    return lambda function: WrongAnswer(number, says, named(function, number))


def right(number: str, says: str) -> Callable[[Callable], RightAnswer]:
    """Decorate an answer to the exercise `number` that nobody would think of first, and that has to pass."""
    return lambda function: RightAnswer(number, says, named(function, number))


def named(function: Callable, number: str) -> Callable:
    function.__name__ = exercise(number).function
    return function


def recorded(names: dict[str, object]) -> list[tuple[str, Answer]]:
    """All answers among `names`, a module's, and in its lists, with the name that says what they do."""
    found = [(name, value) for name, value in names.items() if isinstance(value, Answer)]
    lists = [(name, value) for name, value in names.items() if isinstance(value, list)]
    return found + [(f"{name}[{place}]", each) for name, value in lists for place, each in enumerate(value)
                    if isinstance(each, Answer)]
