"""Which Python continuous integration takes as the second one."""

import sys

import pytest

from tools.newer_python import answer, newest


@pytest.mark.parametrize("found, path", [
    ([(3, 12, "a"), (3, 13, "b"), (3, 11, "c")], "b"),
    ([(3, 13, "a"), (3, 13, "b"), None], "a"),
    ([(3, 11, "a"), (3, 10, "b"), None], None),
    ([(3, 99, "a")], None),
    ([], None),
])
def test_it_is_the_newest_that_is_newer_and_that_the_lock_was_tried_on(found, path):
    assert newest(found, (3, 11)) == path


def test_only_what_answers_as_a_python_that_makes_environments_is_asked_for_more(tmp_path):
    stand_in = tmp_path / "python3.13"
    stand_in.write_text("#!/bin/sh\necho 'pyenv: python3.13: command not found' >&2\nexit 127\n")
    stand_in.chmod(0o755)
    assert answer(str(stand_in)) is None
    assert answer(sys.executable) == (*sys.version_info[:2], sys.executable)
