"""A pytest plugin: the files that take longest come first.

xdist gives whole files to its workers, one after the other. A long file that began last would keep one worker busy
while the others stand idle.
"""

import pytest

LONGEST_FIRST = (
    "tests/grading/test_answers.py",
    "tests/grading/marks/test_class.py",
    "tests/test_nbgrader.py",
    "tests/pretend/test_course.py",
    "tests/test_stock_nbgrader.py",
    "tests/grading/marks/test_gradescope.py",
    "tests/browser/test_day_two.py",
    "tests/checkpoint/test_crashes.py",
    "tests/browser/test_every_widget.py",
    "tests/runtime/test_torchrun.py",
    "tests/zero/test_zero.py",
    "tests/runtime/test_warm.py",
    "tests/site/live/test_widgets.py",
    "tests/grading/test_every_exercise.py",
    "tests/hybrid_parallel/test_training.py",
    "tests/runtime/test_kernel.py",
    "tests/grading/test_trusted.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    place = {path: number for number, path in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: place.get(item.nodeid.partition("::")[0], len(place)))  # the others stay as they were
