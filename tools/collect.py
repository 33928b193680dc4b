"""For `nbgrader zip_collect`: a platform's archive, in which students' own archives and names of files lie.

nbgrader's own plugins unpack archives in archives without end, and stop for all students at the first damaged one or at
two files of one name. These leave out what cannot be laid down, name it, and go on.
nbgrader_config.py has the patterns by which a file's student is known.
"""

import shutil
import stat
import tarfile
import unicodedata
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from nbgrader.plugins import ExtractorPlugin, FileNameCollectorPlugin

from course_lib.grading.marks.handed_in import MOST_BYTES, MOST_DEEP, MOST_FILES, spelling

DAMAGED = (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, OSError, RuntimeError, ValueError)


class Archives(ExtractorPlugin):
    """Unpack what a teacher has downloaded, and once more what a student has packed."""

    def extract(self, archive_path: str, extracted_path: str) -> None:
        """Into a folder for each archive, as nbgrader has it; what is no archive is copied."""
        source, target = Path(archive_path), Path(extracted_path)
        for path in sorted(each for each in source.rglob("*") if each.is_file()):
            laid = target / path.relative_to(source)
            if path.suffix not in self.zip_ext:
                laid.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, laid)
                continue
            folder = laid.parent / laid.stem.removesuffix(".tar")
            self.unpack(path, folder)
            # Of students' archives no tar, whose headers have no limit.
            for own in sorted(each for each in folder.rglob("*.zip") if each.is_file()):
                if self.unpack(own, own.with_suffix(""), MOST_BYTES, MOST_FILES):
                    own.unlink()

    def unpack(self, archive: Path, folder: Path, most_bytes: float = float("inf"), most_files: float = float("inf")
               ) -> bool:
        """Lay down its plain files, up to a limit; whether it could be read whole. The log has what was left out."""
        size = count = 0
        try:
            for name, num_bytes, file in entries(archive):
                size, count = size + num_bytes, count + 1
                if size > most_bytes or count > most_files:
                    raise ValueError(f"more than {most_files} files or {most_bytes >> 20} MB")
                try:
                    lay_entry(file, folder, name)
                except (OSError, ValueError) as error:
                    self.log.warning("%s: left out %r: %s", archive.name, name, error)
        except DAMAGED as error:
            self.log.warning("Left %r packed, or half: %s", str(archive), error)
            return False
        return True


def entries(archive: Path) -> Iterator[tuple[str, int, IO[bytes] | None]]:
    """Name, bytes and content of each file in an archive, None for the content of a link, a device and so on."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as packed:
            for entry in packed.infolist():
                kind = stat.S_IFMT(entry.external_attr >> 16)
                if not entry.is_dir():
                    yield entry.filename, entry.file_size, None if kind not in (0, stat.S_IFREG) else packed.open(entry)
    else:
        with tarfile.open(archive) as packed:
            for entry in packed:
                if not entry.isdir():
                    yield entry.name, entry.size, packed.extractfile(entry) if entry.isreg() else None


def lay_entry(file: IO[bytes] | None, folder: Path, name: str) -> None:
    """Write one file of an archive into `folder`. ValueError, OSError where it is none, or its name leads elsewhere."""
    path = PurePosixPath(unicodedata.normalize("NFC", name.replace("\\", "/")))  # as Windows and macOS pack names
    if file is None:
        raise ValueError("it is a link or no plain file")
    if path.is_absolute() or ".." in path.parts or not 0 < len(path.parts) <= MOST_DEEP:
        raise ValueError("its name leads out of the archive, or too deep into it")
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    with file, open(target, "xb") as laid:  # of two with one name the first one stays
        shutil.copyfileobj(file, laid)


class Students(FileNameCollectorPlugin):
    """Whose a file is, and where it goes: beside another one, where nbgrader would end at two of one name."""

    def __init__(self, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.files: defaultdict[str, set[PurePosixPath]] = defaultdict(set)  # of each student

    def collect(self, submitted_file: str) -> dict[str, str] | None:
        """nbgrader's answer for one file; None for what it skips."""
        found = super().collect(submitted_file)
        if found is None or PurePosixPath(found["file_id"]).is_absolute():  # nbgrader would write there
            return None
        files, path = self.files[found["student_id"]], PurePosixPath(spelling(found["file_id"]))
        folders = {folder for each in files for folder in each.parents}
        twice = path in files and "timestamp" not in found  # with a time nbgrader takes the later one
        if twice or path in folders or files & set(path.parents):
            found["file_id"] = f"{len(files) + 1}/{found['file_id']}"
            path = PurePosixPath(spelling(found["file_id"]))
        files.add(path)
        return found
