"""make size: lines by package, of this tree and of another commit."""

import subprocess
from collections import Counter

import pytest

from tools.size import LIMIT, count_lines, other_side, report, table


@pytest.fixture
def repository(tmp_path):
    """main has six lines; the tree beside it two more in zero, one file of tests that is new, one that is ignored."""
    git(tmp_path, "init", "--quiet", "--initial-branch=main")
    write(tmp_path, {"course_lib/__init__.py": "1\n", "course_lib/zero/a.py": "1\n\n3\n", "tools/b.py": "1\n2",
                     "notebooks/c.py": "1\n", "course_lib/zero/d.js": "1\n", ".gitignore": "made.py\n"})
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message=first")
    git(tmp_path, "switch", "--quiet", "--create", "longer")
    write(tmp_path, {"course_lib/zero/a.py": "1\n\n3\n4\n5\n", "tests/zero/deep/e.py": "1\n", "tests/made.py": "1\n"})
    return tmp_path


def git(root, *words):
    command = ["git", "-c", "user.name=a", "-c", "user.email=b@c", *words]
    subprocess.run(command, cwd=root, check=True, capture_output=True)


def write(root, texts):
    for path, text in texts.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)


def test_lines_are_counted_by_package_of_a_commit_and_of_the_tree_with_what_git_has_not_seen_yet(repository):
    assert count_lines(repository, "main") == {"course_lib": 1, "course_lib/zero": 3, "tools": 2}
    assert count_lines(repository) == {"course_lib": 1, "course_lib/zero": 5, "tests/zero": 1, "tools": 2}


def test_the_table_has_sums_and_what_has_changed(repository):
    rows = {tuple(line.split()) for line in report(repository, "main").splitlines()}
    assert {("course_lib", "6", "4", "+2"), ("zero", "5", "3", "+2"), ("zero", "1", "0", "+1"), ("tools", "2", "2"),
            ("all", "9", "6", "+3"), ("benchmarks", "0", "0")} <= rows


def test_a_package_that_is_gone_is_still_a_row():
    assert "-1,200" in table(Counter({"course_lib/a": 1}), Counter({"course_lib/b": 1200}), "main")


def test_the_limit_of_the_library_stands_beside_its_sum():
    assert table(Counter({"course_lib/a": LIMIT + 5, "tests": 9})).endswith(": 5 too many")
    assert table(Counter({"course_lib/a": LIMIT - 5, "tests": 9})).endswith(": 5 left")


def test_the_other_side_is_main_and_on_main_the_last_commit_or_the_one_before(repository):
    assert other_side(repository) == "HEAD"  # of main, and files have changed since
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "--message=second")
    assert other_side(repository) == "main"
    git(repository, "branch", "--quiet", "--force", "main")
    assert other_side(repository) == "HEAD^"


def test_without_another_side_there_is_one_column(repository):
    git(repository, "stash", "--include-untracked")
    assert other_side(repository) is None  # one commit only: nothing to compare with
    assert "change" not in report(repository) and "course_lib" in report(repository)


def test_a_commit_that_nobody_knows_is_named(repository):
    with pytest.raises(ValueError, match="knows no commit 'nowhere'"):
        report(repository, "nowhere")
