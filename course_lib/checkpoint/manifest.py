"""The manifest of a checkpoint, and whether its files are those that it names, as they were written.

    step       how many steps have been taken              tied      other names of tensors -> the one that is saved
    extra      what the run itself remembers               options   learning rate and the like, of each group
    layout     a number for what each rank held            files     bytes and SHA-256 of each
    run        whose it is                                 written_ns

A checksum finds what was damaged, and not who forged it: a stranger signs as we do. So all is read as data, is
believed where it has the form that a save gives it, and is DamagedCheckpoint otherwise. What only a folder of tricks
has, links, pipes and holes, is no file of a checkpoint.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

MANIFEST, METADATA = "manifest.json", ".metadata"
MOST_BYTES = 2**24  # of a manifest, and of .metadata, which needs some 200 bytes a box: 80,000 boxes
LAST_NS = 2**62  # in 2116
UNNAMED = "unnamed"  # the run of those who name none


class DamagedCheckpoint(ValueError):
    """A file of a checkpoint is missing, cut short, altered, or not what a save writes. The message names it."""


FORMS: dict[str, Callable[[Any], bool]] = {
    "step": lambda step: is_count(step),
    "extra": lambda extra: type(extra) is dict,
    "options": lambda options: options is None or type(options) is list and all(map(is_group, options)),
    "tied": lambda tied: type(tied) is dict and all(type(first) is str for first in tied.values()),
    "layout": lambda layout: type(layout) is list and all(type(of_rank) is int for of_rank in layout),
    "files": lambda files: type(files) is dict and all(
        re.fullmatch(rf"__\d+_\d+\.distcp|\{METADATA}", name) and type(facts) is dict and is_count(facts.get("bytes"))
        and type(facts.get("sha256")) is str and (name != METADATA or facts["bytes"] <= MOST_BYTES)
        for name, facts in files.items()),
    "run": lambda run: type(run) is str and run.isprintable() and 0 < len(run) <= 100,
    "written_ns": lambda written_ns: is_count(written_ns),
}
OF_BEFORE: dict[str, Any] = {"run": UNNAMED, "written_ns": 0}  # of manifests from before there were runs


def wrong_entries(manifest: Mapping[str, Any]) -> list[str]:
    """What in a manifest is not there, or has another form than a save gives it."""
    return [name for name, fits in FORMS.items() if name not in manifest or not fits(manifest[name])]


def is_group(options: Any) -> bool:
    """Whether these are options of an optimiser's group: all but the parameters themselves, in plain JSON."""
    return type(options) is dict and "params" not in options and all(
        each is None or isinstance(each, (int, float, str)) for value in options.values()
        for each in (value if isinstance(value, (list, tuple)) else [value]))


def is_count(value: Any) -> bool:
    """Whether it is a whole number that a step, a size or a time in ns may be."""
    return type(value) is int and 0 <= value <= LAST_NS


def read_manifest(path: Path) -> dict[str, Any]:
    """What commit was given. DamagedCheckpoint where that cannot be read any more, or is of another form."""
    file = path / MANIFEST
    if problem := problem_with(file):
        raise DamagedCheckpoint(problem)
    try:
        if file.stat().st_size > MOST_BYTES:
            raise ValueError(f"it has more than {MOST_BYTES:,} bytes")
        manifest = json.loads(file.read_text(encoding="utf-8"))
        said, right = manifest.pop("sha256"), checksum(manifest)
        wrong = wrong_entries({**OF_BEFORE, **manifest})
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedCheckpoint(f"{file} cannot be read: {type(error).__name__}: {error}") from error
    if said != right:
        raise DamagedCheckpoint(f"{file} is not what was written: its checksum is another one")
    if wrong:
        raise DamagedCheckpoint(f"{file} is no manifest of a checkpoint: its {', '.join(wrong)} has another form")
    return manifest


def checksum(manifest: Mapping[str, Any]) -> str:
    """SHA-256 of a manifest, in hex, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def describe_file(path: Path) -> dict[str, Any]:
    """What the manifest says of a file."""
    with open(path, "rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def problem_with(path: Path) -> str | None:
    """Why nobody should read the file at `path`, or None: it may be a link, a pipe, or nearly all of it a hole."""
    if path.is_symlink():
        return f"{path} is a link: expected the file itself"
    if not path.is_file():
        return f"{path} is no file" if path.exists() else f"{path} is missing"
    facts = path.stat()
    on_disk = getattr(facts, "st_blocks", facts.st_size) * 512  # Windows does not say
    if facts.st_size > max(2**30, 64 * on_disk):  # a file system that compresses makes numbers half as long, or a third
        return f"{path} has {facts.st_size:,} bytes, of which {on_disk:,} are on the disk: expected all"
    return None


def problem_of(path: Path, expected: Mapping[str, Any]) -> str | None:
    """What is wrong with one file, or None."""
    if problem := problem_with(path):
        return problem
    if (size := path.stat().st_size) != expected["bytes"]:
        return f"{path} has {size:,} bytes: expected {expected['bytes']:,}, as when it was written"
    if describe_file(path)["sha256"] != expected["sha256"]:
        return f"{path} is not what was written: its checksum is another one"
    return None


def problems_of(path: Path, names: Iterable[str] | None = None) -> list[str]:
    """What is wrong with the checkpoint at `path`, or with the files of it that are in `names`."""
    try:
        files = read_manifest(path)["files"]
    except DamagedCheckpoint as error:
        return [str(error)]
    looked_at = files if names is None else {name: files[name] for name in names}
    return [problem for name, expected in looked_at.items() if (problem := problem_of(path / name, expected))]
