"""What a student handed in: which file is the notebook, whatever a browser made of its name, and what is wrong with it.

nbgrader knows the notebook by its name alone, so where a folder holds one under another name (a browser's second
download, `06_zero (1).ipynb`), a copy is laid beside it under the right one, and one with a byte order mark, as
Notepad writes it, is laid down without. Where two that differ could be it nobody guesses: the student has no mark, and
the teacher decides.

A folder may come from git or tar, with links that lead to somebody else's file. So only plain files count, and whatever
else lies in a folder, or is more than a notebook needs, is refused with a sentence, before anything is read or copied.
"""

import codecs
import os
import re
import shutil
import stat
import tempfile
import unicodedata
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from course_lib.grading.marks.reading import read_notebook
from course_lib.grading.marks.record import digest_of

MOST_NAMES = 5  # of files, in a sentence
MOST_FILES = 1000  # of a student, in folders of a depth that os.walk has no trouble with
MOST_DEEP = 30
MOST_BYTES = 256 << 20  # of a student
SKIPPED = frozenset({".git", ".venv", "__pycache__", ".ipynb_checkpoints"})  # by nbgrader, too: nbgrader_config.py
UNSEEN = r"\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069"  # control characters, and those that turn a line around
KINDS = ((stat.S_ISLNK, "a link"), (stat.S_ISFIFO, "a named pipe"), (stat.S_ISSOCK, "a socket"),
         (stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a device"))
AS_FILES = "hand in the file itself"


@dataclass(frozen=True)
class HandedIn:
    """A student's folder for one assignment. `notebook` is None where nothing in it can be the notebook."""

    notebook: Path | None
    problem: str = ""  # why it cannot be graded; "" where it can
    note: str = ""  # what else a teacher should know


def take_in(submitted: Path, name: str, grade_ids: frozenset[str] = frozenset()) -> dict[str, HandedIn]:
    """By student, what is below `submitted`; a notebook under another name is copied to the right one."""
    found = {}
    for student in sorted(path for path in submitted.glob("*") if path.is_dir() and not path.name.startswith(".")):
        try:
            one = take_one(student, name, grade_ids)
        except OSError as error:  # such as rights that came with an archive
            one = HandedIn(None, f"it cannot be read: {error}")
        if one is not None:  # else they have handed in another assignment
            found[student.name] = one
    alike = Counter(map(spelling, found))
    for student, one in found.items():
        if alike[spelling(student)] > 1:
            note = "another folder has this name but for capitals or accents"
            found[student] = replace(one, note=f"{one.note}; {note}" if one.note else note)
    return found


def spelling(name: str) -> str:
    """Equal for names that a person, or another file system, takes for the same."""
    return unicodedata.normalize("NFKC", name).casefold()


def take_one(student: Path, name: str, grade_ids: frozenset[str]) -> HandedIn | None:
    """What one student's folder has; None where it is of other assignments alone."""
    if re.search(rf'[\[\]*?<>"\ud800-\udfff{UNSEEN}]', student.name):
        return HandedIn(None, 'nbgrader reads no folder with [, ], *, ?, <, > or " in its name, or with letters that '
                              "are not UTF-8 or cannot be seen: rename it")
    folder, right = student / name, student / name / f"{name}.ipynb"
    if student.is_symlink():
        return HandedIn(None, f"the folder is a link: {AS_FILES}")
    if not folder.is_dir():
        stray = names_in_words([path.name for path in student.glob("*.ipynb")])
        return HandedIn(None, f"{stray} beside a folder {name}, which is not there") if stray else None
    seen = look_at(folder, name, grade_ids)
    if seen.notebook is not None and (seen.notebook != right or has_mark(right)):
        lay(seen.notebook, right)
    return seen


def has_mark(path: Path) -> bool:
    """Whether a file begins with the byte order mark of UTF-8, which nbformat takes for a fault."""
    with open(path, "rb") as file:
        return file.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8


def lay(notebook: Path, right: Path) -> None:
    """Copy `notebook` to `right` without its byte order mark: whole or not at all, since others may read."""
    descriptor, part = tempfile.mkstemp(dir=right.parent, prefix=".")  # a student could not know the name
    with os.fdopen(descriptor, "wb") as file:
        file.write(notebook.read_bytes().removeprefix(codecs.BOM_UTF8))
    shutil.copystat(notebook, part)
    os.replace(part, right)


def files_in(folder: Path) -> list[Path]:
    """The plain files of a folder, by name. ValueError, with a sentence, for anything else in it, or for too much."""
    if folder.is_symlink():
        raise ValueError(f"the folder {folder.name} is a link: {AS_FILES}")
    found, folders, size = [], [folder], 0
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.name in SKIPPED:
                    continue
                path, status = Path(entry.path), entry.stat(follow_symlinks=False)
                inside = path.relative_to(folder)
                kind = next((words for is_it, words in KINDS if is_it(status.st_mode)), "")
                if stat.S_ISDIR(status.st_mode):
                    folders.append(path)
                elif kind or status.st_nlink > 1:
                    raise ValueError(f"{inside.as_posix()!r} is {kind or 'a hard link'}: {AS_FILES}")
                else:
                    found.append(path)
                    size += status.st_size
                if len(found) + len(folders) > MOST_FILES or size > MOST_BYTES or len(inside.parts) > MOST_DEEP:
                    raise ValueError(f"the folder holds more than {MOST_FILES} files, {MOST_BYTES >> 20} MB or "
                                     f"{MOST_DEEP} folders in one another: hand in the notebook alone")
    return sorted(found)


def look_at(folder: Path, name: str, grade_ids: frozenset[str] = frozenset()) -> HandedIn:
    """What is in the folder of one student for the assignment `name`; nothing is changed.

    grade_ids: nbgrader's ids of the notebook that was given out. One under another name has to hold half of them.
    """
    right = folder / f"{name}.ipynb"
    try:
        files = [path for path in files_in(folder) if path.name != "timestamp.txt"
                 and not any(part.startswith(".") for part in path.relative_to(folder).parts)]
        if right.is_dir():
            raise ValueError(f"{right.name} is a folder: {AS_FILES}")
        could_be = [path for path in files
                    if path == right or path.suffix == ".ipynb" and not is_other(path, grade_ids)]
        could_be.sort(key=lambda path: path != right)
        differ = len({digest_of(path) for path in could_be}) > 1
    except (ValueError, OSError) as error:
        return HandedIn(None, str(error))
    names = names_in_words([path.relative_to(folder).as_posix() for path in could_be or files])
    if not could_be:
        return HandedIn(None, f"no {name}.ipynb in the folder; there is {names}" if files else "the folder is empty")
    if differ:
        return HandedIn(None, f"{len(could_be)} notebooks that differ could be it: {names}; leave the one that counts")
    renamed = [path.relative_to(folder).as_posix() for path in could_be if path != right]
    return HandedIn(could_be[0], problem_of(could_be[0]), f"taken from {names_in_words(renamed)}" if renamed else "")


def is_other(path: Path, grade_ids: frozenset[str]) -> bool:
    """Whether a file is a notebook, and has less than half of these ids; one that cannot be read may be any."""
    try:
        found = {cell.metadata.get("nbgrader", {}).get("grade_id") for cell in read_notebook(path).cells}
    except (ValueError, OSError):
        return False
    return 2 * len(found & grade_ids) < len(grade_ids)


def problem_of(path: Path) -> str:
    """Why the file cannot be read as a notebook, for a student and a teacher; "" where it can."""
    try:
        read_notebook(path)
    except ValueError as error:
        return f"the file is no notebook, or its upload was cut off: {error}"
    return ""


def names_in_words(names: list[str]) -> str:
    """The first few of them, and how many more there are."""
    more = f" and {len(names) - MOST_NAMES} more" * (len(names) > MOST_NAMES)
    return ", ".join(map(repr, names[:MOST_NAMES])) + more
