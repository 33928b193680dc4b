"""make size: lines and files by package, of this tree and of another commit."""

import subprocess

from tools import size


def test_a_commit_and_the_tree_with_what_git_has_not_seen_yet_stand_side_by_side(tmp_path, monkeypatch):
    def git(*words):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=b@c", *words], cwd=tmp_path, check=True)

    def write(texts):
        for path, text in texts.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)

    monkeypatch.setattr(size, "ROOT", tmp_path)
    git("init", "--quiet", "--initial-branch=main")
    write({"course_lib/__init__.py": "1\n", "course_lib/zero/a.py": "1\n\n3\n", "tools/b.py": "1\n2",
           ".gitignore": "made.py"})
    git("add", ".")
    git("commit", "--quiet", "--message=first")
    write({"course_lib/zero/a.py": "1\n\n3\n4\n5\n", "tests/zero/deep/e.py": "1\n", "tests/made.py": "1\n"})
    rows = {tuple(line.split()[:5]) for line in size.report("HEAD").splitlines()[1:]}
    assert rows == {("course_lib", "6", "4", "2", "2"), ("zero", "5", "3", "1", "1"), ("tools", "2", "2", "1", "1"),
                    ("tests", "1", "0", "1", "0"), ("zero", "1", "0", "1", "0"), ("all", "9", "6", "cap", "92,000")}
