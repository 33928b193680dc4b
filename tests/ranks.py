"""A test whose body every rank runs: its name is the claim, and what the ranks return has to be as it says.

    @gives([2.0, 0.0, 1.0], world_size=3)
    def test_a_message_goes_round(): ...
"""

from collections.abc import Callable, Sequence
from typing import Any

from course_lib.runtime import launch


def gives(expected: Sequence[Any], world_size: int = 2, run: Callable = launch, **options: Any) -> Callable:
    """Make a test of a body: `run(body, world_size=...)` returns `expected`, by rank."""
    def make(body: Callable[[], Any]) -> Callable[[], None]:
        def test() -> None:
            assert list(run(body, world_size=world_size, **options)) == list(expected)

        test.__name__, test.__doc__, test.__module__ = body.__name__, body.__doc__, body.__module__
        return test
    return make
