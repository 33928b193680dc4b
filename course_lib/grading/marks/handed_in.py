"""What a student has handed in: which file of the folder is the notebook, and what is wrong with it, in words.

Browsers call a second download `02_collectives (1).ipynb`, JupyterLab's copies are `02_collectives-Copy1.ipynb`, and
learning platforms add numbers of their own. nbgrader knows `02_collectives.ipynb` alone, so that is made of them.
"""

import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import nbformat

from course_lib.grading.marks.record import digest_of

# Behind the notebook's name, with the number of the copy: browsers, macOS, Windows, JupyterLab, Canvas.
COPY = re.compile(r"(?: ?\((?P<browser>\d+)\)|(?: - | |[-_])?copy[ -]?(?P<copy>\d*)|[-_](?P<platform>\d+))?",
                  re.IGNORECASE)
ENDINGS = (".ipynb", ".ipynb.txt", ".ipynb.json", ".json")  # what mail programs and browsers make of it
LAID = ".laid"  # beside a copy laid under the right name: its digest, so that a later file is told from it
MOST_NAMES = 5


@dataclass(frozen=True)
class HandedIn:
    """A student's folder for one assignment. `notebook` is None where nothing in it can be the notebook."""

    notebook: Path | None
    problem: str = ""  # why it cannot be graded; "" where it can
    note: str = ""  # what else a teacher should know


def look_at(folder: Path, name: str, grade_ids: frozenset[str] = frozenset()) -> HandedIn:
    """What is in the folder of one student for the assignment `name`; nothing is changed.

    grade_ids: nbgrader's ids of the notebook that was given out. A file of any name that has half of them is it.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "timestamp.txt"
                   and not any(part.startswith(".") for part in path.relative_to(folder).parts)
                   ) if folder.is_dir() else []
    if not files:
        return HandedIn(None, "the folder is empty")
    exact = folder / f"{name}.ipynb"
    copies = sorted(((number, path) for path in files
                     if path != exact and (number := copy_number(path.name, name)) is not None),
                    key=lambda pair: (pair[0], str(pair[1])))
    by_content = [path for path in files if path != exact and has_half(path, grade_ids)] if not copies else []
    # One that was made of a copy gives way to a later copy; one that was handed in so does not.
    was_made = exact.is_file() and (any(same_bytes(exact, path) for _, path in copies)
                                    or (folder / LAID).is_file() and (folder / LAID).read_text() == digest_of(exact))
    chosen = exact if exact.is_file() and not was_made else copies[-1][1] if copies else (
        by_content[0] if len(by_content) == 1 else exact if was_made else None)
    names = [path.relative_to(folder).as_posix() for path in files if path != chosen]
    if chosen is None:
        several = f"{len(by_content)} files could be it; " * (len(by_content) > 1)
        return HandedIn(None, f"no {name}.ipynb in the folder; {several}there is {names_in_words(names)}")
    also = [path.relative_to(folder).as_posix() for path in [*(path for _, path in copies), *by_content]
            if path != chosen]
    notes = [f"taken from {chosen.relative_to(folder).as_posix()!r}"] * (chosen != exact)
    notes += [f"not looked at: {names_in_words(also)}"] * bool(also)
    return HandedIn(chosen, problem_of(chosen), "; ".join(notes))


def copy_number(file: str, name: str) -> int | None:
    """How late a copy of `name`.ipynb the file is by its name, 0 for none; None for another file.

    >>> copy_number("02_collectives (3).ipynb", "02_collectives"), copy_number("notes.ipynb", "02_collectives")
    (3, None)
    """
    ending = next((each for each in ENDINGS if file.lower().endswith(each)), None)
    if ending is None or not file.lower().startswith(name.lower()):
        return None
    found = COPY.fullmatch(file[len(name):-len(ending)])
    if not found:
        return None
    numbers = [value for value in found.groups() if value is not None]
    return max((int(value or 1) for value in numbers), default=0)


def same_bytes(one: Path, other: Path) -> bool:
    """Whether two files hold the same."""
    return one.stat().st_size == other.stat().st_size and one.read_bytes() == other.read_bytes()


def has_half(path: Path, grade_ids: frozenset[str]) -> bool:
    """Whether a file is a notebook with at least half of these ids."""
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        found = {cell["metadata"].get("nbgrader", {}).get("grade_id") for cell in cells}
    except (ValueError, KeyError, TypeError, AttributeError, OSError, RecursionError):
        return False
    return bool(grade_ids) and 2 * len(found & grade_ids) >= len(grade_ids)


def problem_of(path: Path) -> str:
    """Why the file cannot be read as a notebook, for a student and a teacher; "" where it can."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return f"the file is no text (byte {error.start}): perhaps an archive or a picture under another name"
    if not text.strip():
        return "the file is empty: the upload or the disk may have failed"
    if text.lstrip().startswith("<"):
        return "the file is a web page, not a notebook: it was saved from the browser's window"
    try:
        data = json.loads(text)
    except RecursionError:
        return "the file is nested too deeply for a notebook"
    except ValueError as error:
        place = getattr(error, "pos", 0)
        if place >= len(text.rstrip()) - 1 or "Unterminated" in str(error):
            return "the file ends in the middle: the upload or the download was cut off"
        if "<<<<<<<" in text:
            return "the file holds the marks of a merge conflict of git (<<<<<<<)"
        return f"the file is damaged at line {getattr(error, 'lineno', '?')}: {getattr(error, 'msg', error)}"
    if not isinstance(data, dict) or not ({"cells", "worksheets"} & data.keys()):
        return "the file is no notebook: it has no cells"
    try:
        cells = nbformat.reads(text, as_version=4).cells
        assert all(isinstance(cell.source, str) and cell.cell_type for cell in cells), "a cell has no source"
    except Exception as error:  # nbformat raises what it stumbles over
        line = str(error).strip().splitlines() or [type(error).__name__]
        return f"the file is no notebook that nbformat can read: {line[0][:200]}"
    return ""


def take_in(submitted: Path, name: str, grade_ids: frozenset[str] = frozenset()) -> dict[str, HandedIn]:
    """By student, what is below `submitted`; a copy under another name is laid beside itself under the right one.

    A notebook that lies in the student's folder and not in one of the assignment's is put there, too.
    """
    found = {}
    for student in sorted(path for path in submitted.glob("*") if path.is_dir() and not path.name.startswith(".")):
        folder = student / name
        stray = [path for path in student.glob("*") if path.is_file() and copy_number(path.name, name) is not None]
        if not folder.exists() and not stray and any(path.is_dir() for path in student.iterdir()):
            continue  # has handed in another assignment
        for path in stray:
            if not (own := folder / path.name).is_file() or path.stat().st_mtime > own.stat().st_mtime:
                folder.mkdir(exist_ok=True)
                lay(path, own)
        if re.search(r"[\[\]*?\ud800-\udfff]", student.name):
            found[student.name] = HandedIn(None, "nbgrader reads no folder with [, ], * or ? in its name, or with "
                                                 "letters that are not UTF-8: rename it")
            continue
        seen = look_at(folder, name, grade_ids)
        exact = folder / f"{name}.ipynb"
        if seen.notebook is not None and seen.notebook != exact:
            lay(seen.notebook, exact)
            (folder / LAID).write_text(digest_of(exact))
        found[student.name] = seen
    return found


def lay(copy: Path, place: Path) -> None:
    """Put a copy there, whole or not at all, since others may read; nothing where it lies there already."""
    if not (place.is_file() and same_bytes(copy, place)):
        part = place.with_name(f".{place.name}.part")
        shutil.copy2(copy, part)
        os.replace(part, place)  # also over what nbgrader has made read-only


def names_in_words(names: list[str]) -> str:
    """The first few of them, and how many more there are."""
    more = f" and {len(names) - MOST_NAMES} more" * (len(names) > MOST_NAMES)
    return ", ".join(map(repr, names[:MOST_NAMES])) + more if names else "nothing else"
