"""Write all that a page needs for its widgets to move; Pyodide, CPython compiled for browsers, as npm has it."""

import base64
import hashlib
import json
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from importlib.metadata import files
from pathlib import Path
from typing import Any

from course_lib import widgets
from course_lib.facts import ACCELERATORS, DEVICE_VARIANTS, MODELS
from course_lib.planner.command import DESCRIPTION, parser
from course_lib.planner.constants import SOFTWARE
from course_lib.widgets.base import StaticView

# Pyodide, as its npm package has it. The only place that names its version

VERSION = "314.0.7"  # Python 3.14
INTEGRITY = "sha512-0YvXxEhfEdpLfb/XkM2BFAeMROq0iMUX2bzzH9pOttyMcWkwq+HbE5uyuGD82LN7y2q+SNvi/6V5JEsOlD2R1A=="
FILES = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "README.md")
LOCK = "pyodide-lock.json"
ROOT = Path(__file__).resolve().parents[3]
CACHE = ROOT / "build" / "npm"


class NoPyodide(Exception):
    """The package cannot be had, or is another one than was expected."""


def unpack_pyodide(into: Path) -> None:
    """Write the files that a page needs into the folder `into`."""
    into.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fetch_pyodide()) as package:
        for name in FILES:
            with package.extractfile(f"package/{name}") as source, open(into / name, "wb") as target:
                shutil.copyfileobj(source, target)
        # No package of its list is loaded here; Pyodide wants to know the list's own version all the same.
        lock = json.load(package.extractfile(f"package/{LOCK}"))
    (into / LOCK).write_text(json.dumps({**lock, "packages": {}}), encoding="utf-8")


def fetch_pyodide(cache: Path = CACHE) -> Path:
    """The package as npm has it, fetched once. NoPyodide where that cannot be."""
    package = cache / f"pyodide-{VERSION}.tgz"
    if not package.exists():
        npm = shutil.which("npm")
        if npm is None:
            raise NoPyodide("npm was not found: install Node.js (Debian: apt-get install npm), which fetches Pyodide")
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            done = subprocess.run([npm, "pack", f"pyodide@{VERSION}", "--silent"], cwd=folder, capture_output=True,
                                  text=True, check=False)
            packed = Path(folder, package.name)
            if done.returncode or not packed.exists():
                raise NoPyodide(f"npm pack pyodide@{VERSION} did not succeed:\n{done.stderr}")
            packed.replace(package)  # whole or not at all: tests in other processes look for it
    found = "sha512-" + base64.b64encode(hashlib.sha512(package.read_bytes()).digest()).decode()
    if found != INTEGRITY:
        raise NoPyodide(f"{package} is not the package that was tested: its hash is {found}, expected {INTEGRITY}; "
                        "delete it to fetch it again")
    return package


# What a page loads

BROWSER = Path(__file__).parent / "browser"
SCRIPTS = ("live.js", "nodes.js", "model.js", "python.js", "planner.js", "worker.js")


def build(dest: Path) -> None:
    """Make the folder `dest` anew."""
    shutil.rmtree(dest, ignore_errors=True)
    (dest / "widgets").mkdir(parents=True)
    unpack_pyodide(dest / "pyodide")
    write_archive(dest / "course.zip")
    kinds = classes()
    for name, script in {script_of(kind): kind._esm for kind in kinds}.items():
        (dest / "widgets" / name).write_text(str(script), encoding="utf-8")
    (style,) = {str(kind._css) for kind in kinds}
    (dest / "live.css").write_text(f"{style}\n{(BROWSER / 'live.css').read_text(encoding='utf-8')}", encoding="utf-8")
    for name in SCRIPTS:
        shutil.copy(BROWSER / name, dest)
    scripts = {kind.__name__: script_of(kind) for kind in kinds}
    megabytes = sum(path.stat().st_size for path in (dest / "pyodide").iterdir()) / 1e6
    (dest / "course.js").write_text(
        f"export const SCRIPTS = {json.dumps(scripts, indent=2)};\nexport const MEGABYTES = {megabytes:.0f};\n"
        f"export const PLANNER = {json.dumps(planner_options(), indent=2)};\n", encoding="utf-8")


def planner_options() -> dict[str, Any]:
    """{"description", "groups": [{"title", "options": [...]}], "known": names by option}: the planner's command is the
    only place that lists them. An option's `takes` is None where it is there or not.
    """
    groups = [{"title": group.title, "options": [
        {"name": each.option_strings[0].lstrip("-"), "help": each.help, "required": each.required,
         "choices": None if each.choices is None else list(map(str, each.choices)),
         "takes": None if each.nargs == 0 else each.metavar or each.dest, "default": each.default}
        for each in group._group_actions if each.dest != "help"]} for group in parser()._action_groups]
    return {"description": DESCRIPTION, "groups": [group for group in groups if group["options"]],
            "known": {"model": [each.name for each in MODELS], "software": [each.name for each in SOFTWARE],
                      "gpus": [f"64x{each.name}" for each in (*ACCELERATORS, *DEVICE_VARIANTS)]}}


def classes() -> list[type[StaticView]]:
    """Every widget that readers have a name for."""
    found = [getattr(widgets, name) for name in widgets.__all__]
    return [kind for kind in found if isinstance(kind, type) and issubclass(kind, StaticView) and hasattr(kind, "_esm")
            and kind is not widgets.Explorable]


def script_of(kind: type[StaticView]) -> str:
    """The file for its JavaScript, named after the class that it was written for."""
    return f"{next(base.__name__ for base in kind.__mro__ if '_esm' in vars(base))}.js"


def write_archive(path: Path) -> None:
    """The Python that pages import, with the files that it reads, and its licences."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for source, name in sorted(list_archive(), key=lambda each: each[1]):
            # A fixed date: the same course gives the same bytes.
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            archive.writestr(entry, source.read_bytes(), zipfile.ZIP_DEFLATED, 9)


def list_archive() -> Iterator[tuple[Path, str]]:
    """(file, its name in the archive): all of course_lib but the grader, since what is heavy is imported on use."""
    yield from ((path, path.name) for path in (BROWSER / "python").glob("*.py"))
    yield from ((path, path.relative_to(ROOT).as_posix()) for path in (ROOT / "course_lib").rglob("*")
                if path.suffix in (".py", ".js", ".css", ".json") and "grading" not in path.parts)
    yield ROOT / "LICENSE", "course_lib/LICENSE"
    for each in files("traitlets"):
        if each.suffix == ".py" or each.name == "LICENSE":
            yield Path(each.locate()), each.as_posix() if each.suffix else "traitlets/LICENSE"
