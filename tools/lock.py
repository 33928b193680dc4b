"""Write requirements.lock: one pinned version of every package the two commands install, for any platform.

    python tools/lock.py                            keep the pins that still fit, add and drop the others
    python tools/lock.py --upgrade-package torch    move one package; any flag of `uv pip compile` works

The lock names packages and versions, never an address: the reader's own pip configuration decides where torch
comes from, and so whether it is the CPU or the CUDA build. CUDA's own packages are left out for that reason:
a CUDA build of torch brings those it was made for, a CPU build none.
"""

import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
LOWEST_PYTHON = "3.11"
EXTRAS = ("test", "classes", "authors", "bench", "site", "deepspeed")
BROUGHT_BY_TORCH = re.compile(r"(nvidia-|cuda-|triton|pytorch-triton)")

HEADER = f"""\
# Written by `make lock` from pyproject.toml (course and extras {", ".join(EXTRAS)}). Do not edit.
# Any platform, Python {LOWEST_PYTHON} and newer. CUDA packages are absent on purpose: see CONTRIBUTING.md.
"""


def uv_command() -> list[str]:
    """How to call uv here; SystemExit with the way to get it where it is missing."""
    if importlib.util.find_spec("uv"):
        return [sys.executable, "-m", "uv"]
    if shutil.which("uv"):
        return ["uv"]
    raise SystemExit("make lock needs uv, which resolves for every platform at once: pip install uv")


def without_torch_companions(compiled: str) -> str:
    """The pins of `compiled` (one a line) without the packages that a CUDA build of torch brings itself."""
    return "".join(line for line in compiled.splitlines(keepends=True) if not BROUGHT_BY_TORCH.match(line))


def compile_lock(flags: list[str]) -> str:
    """The text of a new lock; pins of the present one that still fit are kept unless `flags` say not."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, LOCK.name)
        if LOCK.exists():
            shutil.copy(LOCK, output)
        command = [*uv_command(), "pip", "compile", "pyproject.toml", "--universal", "--quiet"]
        command += ["--python-version", LOWEST_PYTHON, "--no-annotate", "--no-header", "-o", str(output)]
        command += [f"--extra={extra}" for extra in EXTRAS]
        finished = subprocess.run([*command, *flags], cwd=ROOT)
        if finished.returncode:
            raise SystemExit(f"uv could not resolve pyproject.toml; {LOCK.name} is unchanged")
        return HEADER + without_torch_companions(output.read_text())


if __name__ == "__main__":
    LOCK.write_text(compile_lock(sys.argv[1:]))
    print(f"wrote {LOCK.name}; now run `make test`, and commit it together with pyproject.toml")
