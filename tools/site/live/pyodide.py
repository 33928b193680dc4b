"""Pyodide, CPython compiled for browsers, as its npm package has it. The only place that names its version."""

import base64
import hashlib
import json
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

VERSION = "314.0.7"  # Python 3.14
INTEGRITY = "sha512-0YvXxEhfEdpLfb/XkM2BFAeMROq0iMUX2bzzH9pOttyMcWkwq+HbE5uyuGD82LN7y2q+SNvi/6V5JEsOlD2R1A=="
FILES = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "README.md")
LOCK = "pyodide-lock.json"
CACHE = Path(__file__).resolve().parents[3] / "build" / "npm"


class NoPyodide(Exception):
    """The package cannot be had, or is another one than was expected."""


def unpack(into: Path) -> None:
    """Write the files that a page needs into the folder `into`."""
    into.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fetch()) as package:
        for name in FILES:
            with package.extractfile(f"package/{name}") as source, open(into / name, "wb") as target:
                shutil.copyfileobj(source, target)
        # No package of its list is loaded here; Pyodide wants to know the list's own version all the same.
        lock = json.load(package.extractfile(f"package/{LOCK}"))
    (into / LOCK).write_text(json.dumps({**lock, "packages": {}}), encoding="utf-8")


def fetch(cache: Path = CACHE) -> Path:
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
