"""For the tests of the class grader: one grader a test file, started when it is first needed; courses.py's folders."""

from collections.abc import Callable, Iterator

import pytest

from course_lib.grading.report import Report
from tests.grading.class_exercise import ClassOfStudents
from tests.grading.courses import collectives_class, graded_class, made_course  # noqa: F401 (fixtures)


@pytest.fixture(scope="module")
def grade() -> Iterator[Callable[..., Report]]:
    students = ClassOfStudents()
    yield students.grade
    students.close()
