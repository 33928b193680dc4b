"""For the tests of the class grader: one grader a test file, started when it is first needed."""

from collections.abc import Callable, Iterator

import pytest

from course_lib.grading.report import Report
from tests.grading.class_exercise import ClassOfStudents


@pytest.fixture(scope="module")
def grade() -> Iterator[Callable[..., Report]]:
    students = ClassOfStudents()
    yield students.grade
    students.close()
