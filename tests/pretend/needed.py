"""For tests of the pretended GPU: without a compiler, importing this loudly skips the whole file."""

from collections.abc import Callable
from typing import Any

import pytest

from course_lib.runtime import launch
from course_lib.runtime.results import Results
from tools.harness.pretend import build
from tools.harness.pretend.hook import pretended
from tools.harness.pretend.modes import MODES

MISSING = build.why_not()
if MISSING:
    pytest.skip(f"NO PRETENDED GPU HERE: {MISSING}", allow_module_level=True)


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    build.build()  # RuntimeError, not a skip, where there is a compiler and it fails


def on(mode: str, function: Callable, *arguments: Any, world_size: int = 2, **options: Any) -> Results:
    """`launch` on the machine of `mode`."""
    with pretended(MODES[mode]):
        return launch(function, *arguments, world_size=world_size, **options)
