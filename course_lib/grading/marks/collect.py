"""From the archive that a learning platform gives to students' folders: `nbgrader zip_collect` with our file names.

nbgrader unpacks downloaded/NAME/archive/*.zip, asks a collector whose each file is, and copies it to submitted/. Each
platform packs in its own way; the table below has those that we know. Which of a student's files is the notebook is
decided later, by handed_in.py, so nothing is refused here for its name.
"""

import re
from pathlib import Path, PurePath
from typing import Any

from nbgrader.plugins import FileNameCollectorPlugin

# (platform, pattern of the path below the unpacked archive). From their manuals and forums; none was tried with a real
# export of ours. The first that fits counts.
PLATFORMS = (
    # "Ada Lovelace_1234567_assignsubmission_file_/02_collectives.ipynb", the number being the participant's
    ("Moodle, a folder each", r"(?:.*/)?(?P<student_id>[^/]+_\d+)_assignsubmission_file_?/(?P<file_id>.+)"),
    # "Ada Lovelace_1234567_assignsubmission_file_02_collectives.ipynb"
    ("Moodle, flat", r"(?:.*/)?(?P<student_id>[^/]+?_\d+)_assignsubmission_file_(?P<file_id>[^/]+)"),
    # "lovelaceada_LATE_12345_678901_02_collectives-1.ipynb": user and submission
    ("Canvas", r"(?:.*/)?(?P<student_id>[^/_]+)_(?:LATE_)?\d{2,}_\d{2,}_(?P<file_id>[^/]+)"),
    # "Chapter 2_ada_attempt_2026-01-30-15-00-00_02_collectives.ipynb"
    ("Blackboard", r"(?:.*/)?[^/]*_(?P<student_id>[^/_]+)_attempt_(?P<timestamp>\d{4}(?:-\d\d){5})_(?P<file_id>[^/]+)"),
)


class LearningPlatformFiles(FileNameCollectorPlugin):
    """Says whose a file of an unpacked archive is."""

    def collect(self, submitted_file: str) -> dict[str, Any] | None:
        """nbgrader's dict with "student_id", "file_id" and perhaps "timestamp"; None for a file that is nobody's."""
        if self.named_regexp:  # a teacher's own pattern comes first
            return super().collect(submitted_file)
        path = PurePath(submitted_file)
        parts = path.parts
        below = parts[parts.index("extracted") + 1:] if "extracted" in parts else parts[-2:]
        found = owner_of("/".join(below), assignment_of(parts))
        return None if path.name == "onlinetext.html" else found  # Moodle's own text field


def owner_of(path: str, name: str) -> dict[str, str] | None:
    """Whose the file at `path` (below the unpacked archive) is, for the assignment `name`.

    >>> owner_of("all/lovelaceada_12345_678901_02_collectives-1.ipynb", "02_collectives")
    {'student_id': 'lovelaceada', 'file_id': '02_collectives-1.ipynb'}
    >>> owner_of("all/ada/02_collectives (1).ipynb", "02_collectives")
    {'student_id': 'ada', 'file_id': '02_collectives (1).ipynb'}
    """
    if any(part.startswith((".", "__MACOSX")) for part in path.split("/")):
        return None
    for _, pattern in PLATFORMS:
        if found := re.fullmatch(pattern, path):
            parts = found.groupdict()
            if "timestamp" in parts:
                day, clock = parts["timestamp"][:10], parts["timestamp"][11:].replace("-", ":")
                parts["timestamp"] = f"{day} {clock}"
            return parts | {"file_id": parts["file_id"].rpartition("/")[2]}
    *folders, file = path.split("/")
    own = [folder for folder in folders if folder != name]
    if own and (len(own) > 1 or name in folders or file.startswith(name)):
        return {"student_id": own[-1], "file_id": file}  # a folder for each student
    return None


def assignment_of(parts: tuple[str, ...]) -> str:
    """The folder above "extracted" is the assignment's."""
    return parts[parts.index("extracted") - 1] if "extracted" in parts else ""


def archive_folder(course: Path, name: str) -> Path:
    """Where `nbgrader zip_collect` looks for archives."""
    return course / "downloaded" / name / "archive"
