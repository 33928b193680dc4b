"""Compile the pretended device, once for each torch and each text of its sources.

One call of the C++ compiler, without ninja, for all sources together: torch's headers take most of its half minute.
The result lies in build/pretend/ under a name that holds what it was made from, so that two test processes can use one
build, and a stale one is never loaded.
"""

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from functools import cache
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).resolve().parent
FOLDER = HERE.parents[2] / "build" / "pretend"
SOURCES = ("device.cpp", "wire.cpp", "streams.h")
NAME = "pretended_gpu"


def why_not() -> str | None:
    """Why this machine cannot build the device; None where it can."""
    if sys.platform != "linux":
        return "the pretended GPU is built on Linux only"
    if shutil.which(compiler()) is None:
        return f"the pretended GPU needs a C++ compiler, and there is no {compiler()!r}: install g++ or set CXX"
    return None


def compiler() -> str:
    """The compiler that torch.utils.cpp_extension uses."""
    return os.environ.get("CXX", "c++")


def path() -> Path:
    """Where the compiled device lies, or would."""
    import torch

    said = hashlib.sha256()
    for part in (torch.__version__, sys.implementation.cache_tag, compiler(),
                 *((HERE / name).read_text(encoding="utf-8") for name in SOURCES)):
        said.update(part.encode())
    return FOLDER / f"{NAME}-{said.hexdigest()[:16]}.so"


def build() -> Path:
    """The compiled device, made now where it is missing. RuntimeError with the compiler's words where it fails."""
    target = path()
    FOLDER.mkdir(parents=True, exist_ok=True)
    with open(FOLDER / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two test processes ask at the same time
        if not target.exists():
            for stale in FOLDER.glob(f"{NAME}-*.so"):
                stale.unlink()
            compile_into(target)
    return target


def compile_into(target: Path) -> None:
    import torch
    from torch.utils import cpp_extension

    folders = [*cpp_extension.include_paths(), sysconfig.get_path("include")]
    libraries = cpp_extension.library_paths()
    partial = target.with_suffix(".partial")
    sources = "".join(f'#include "{HERE / name}"\n' for name in SOURCES if name.endswith(".cpp"))
    finished = subprocess.run(
        [compiler(), "-shared", "-fPIC", "-std=c++20", "-O1", "-w", f"-DTORCH_EXTENSION_NAME={NAME}",
         f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
         *(f"-isystem{folder}" for folder in folders), "-x", "c++", "-", "-x", "none",
         *(f"-L{folder}" for folder in libraries), "-lc10", "-ltorch", "-ltorch_cpu", "-ltorch_python",
         "-o", str(partial)],
        input=sources, capture_output=True, text=True)
    if finished.returncode:
        raise RuntimeError(f"{compiler()} could not build the pretended GPU:\n{finished.stderr[-4000:]}")
    partial.rename(target)


@cache
def load() -> ModuleType:
    """The compiled device as a module: importing it gives this process a device, for good."""
    spec = importlib.util.spec_from_file_location(NAME, build())
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
