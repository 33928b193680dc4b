"""How a chapter records wrong answers that readers really give: with the words in which the check names the cause.

    @wrong("2.1", "you return chunk r+1")
    def starts_with_its_own_chunk(tensor): ...
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from course_lib.grading.registry import exercise


@dataclass(frozen=True)
class WrongAnswer:
    """An answer to the exercise `number`; what `check` says of it contains `words`."""

    number: str
    words: str
    function: Callable


def wrong(number: str, words: str) -> Callable[[Callable], WrongAnswer]:
    """Decorate an answer to the exercise `number`, which takes the name of the exercise's function."""

    def record(function: Callable) -> WrongAnswer:
        function.__name__ = exercise(number).function
        return WrongAnswer(number, words, function)

    return record


def recorded(names: dict[str, object]) -> Iterable[tuple[str, WrongAnswer]]:
    """All wrong answers among `names`, a module's, with the name that says what is wrong."""
    return [(name, value) for name, value in names.items() if isinstance(value, WrongAnswer)]
