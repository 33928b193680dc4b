"""How a chapter records wrong answers that readers really give: the code, and the whole sentence that names the cause.

    @wrong("2.1", "every half ends one rank before its home: what travels right starts with chunk r-1")
    def starts_with_its_own_chunk(tensor): ...

    DAYS = [wrong("1.2", "these are hours: a day has 24")(lambda *asked: 24 * my_training_days(*asked)), ...]

They stand in solutions/NN_name/wrong_answers.py, the only place of a mistake. `make mistakes` runs each and records
what it gives; from then on `check` and TrustedGrade say the sentence to whoever gives the same.
"""

from collections.abc import Callable
from dataclasses import dataclass

from course_lib.grading.registry import exercise


@dataclass(frozen=True)
class WrongAnswer:
    """An answer to the exercise `number`, and what is said of it."""

    number: str
    says: str
    function: Callable


def wrong(number: str, says: str) -> Callable[[Callable], WrongAnswer]:
    """Decorate an answer to the exercise `number`, which takes the name of the exercise's function.

    says: the cause in a sentence; or words that the check says of it by itself, as of an error or an excess.
    """

    def record(function: Callable) -> WrongAnswer:
        function.__name__ = exercise(number).function
        return WrongAnswer(number, says, function)

    return record


def recorded(names: dict[str, object]) -> list[tuple[str, WrongAnswer]]:
    """All wrong answers among `names`, a module's, and in its lists, with the name that says what is wrong."""
    found = [(name, value) for name, value in names.items() if isinstance(value, WrongAnswer)]
    lists = [(name, value) for name, value in names.items() if isinstance(value, list)]
    return found + [(f"{name}[{place}]", each) for name, value in lists for place, each in enumerate(value)
                    if isinstance(each, WrongAnswer)]
