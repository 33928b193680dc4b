"""A pytest plugin: the files that take longest come first.

xdist gives whole files to its workers, one after the other. A long file that began last would keep one worker busy
while the others stand idle.
"""

import pytest

LONGEST_FIRST = """
    grading/test_answers grading/marks/test_class test_nbgrader pretend/test_course test_stock_nbgrader
    grading/marks/test_gradescope browser/test_day_two checkpoint/test_crashes browser/test_every_widget
    runtime/test_torchrun zero/test_zero runtime/test_warm site/live/test_widgets grading/test_every_exercise
    hybrid_parallel/test_training runtime/test_kernel grading/test_trusted
""".split()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    place = {f"tests/{path}.py": number for number, path in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: place.get(item.nodeid.partition("::")[0], len(place)))  # the others stay as they were
