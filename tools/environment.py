"""The environments, each from requirements.lock: the course's alone, and what an extra of pyproject.toml adds to it.

    python tools/environment.py make .venv            what a reader needs
    python tools/environment.py make .venv test       and what the tests need
    python tools/environment.py newest                the newest Python of this machine that can make one
    python tools/environment.py bare build/bare       what a machine with a GPU has: no package of Jupyter, and the
                                                      oldest torch that the course supports

uv, which pip puts into the new environment, installs in a third of pip's time. Where it cannot be had, or fails, pip
does, from the same lock. The lock names packages and versions, never an address: the reader's own pip configuration,
which uv is handed, decides where torch comes from, and so whether it is the CPU or the CUDA build. CUDA's own packages
are left out for that reason: a CUDA build of torch brings those that it was made for.

Runs under any Python as far as its complaint about an old one: no new syntax here.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
LOWEST, NEWEST = (3, 11), (3, 14)
BARE_PYTHON = (3, 12)  # where there is one
BARE = ["numpy", "matplotlib", "tqdm", "psutil", "cloudpickle", "pygments", "pytest", "attrs", "coverage"]
UV_SETTINGS = {"find-links": "UV_FIND_LINKS", "index-url": "UV_DEFAULT_INDEX", "extra-index-url": "UV_INDEX",
               "cert": "SSL_CERT_FILE"}  # by pip's name
ASKED = ("import sys, venv, ensurepip; assert sys.version_info.releaselevel == 'final'; "
         "print(*sys.version_info[:2], sys.executable)")


def complaint(version):
    """What is wrong with a Python of this `version`, or None. What venv lacks, it says itself."""
    if tuple(version[:2]) >= LOWEST:
        return None
    found = ".".join(str(number) for number in version[:3])
    return ("The course needs Python %d.%d or newer, and this one is %s (%s)\n"
            "  Name a newer one: make test PYTHON=python3.12") % (LOWEST + (found, sys.executable))


def settings_for_uv(pip_config, environment):
    """What `pip config list` prints, as uv's variables; those that are set already stay, PIP_...'s come last."""
    listed = re.findall(r"^(global|install|:env:)\.([a-z-]+)='(.*)'$", pip_config, re.MULTILINE)
    found = {name: value for where in ("global", "install", ":env:")
             for place, name, value in listed if place == where}
    settings = {variable: found[name] for name, variable in UV_SETTINGS.items()
                if name in found and variable not in environment}
    if "UV_INDEX" in settings:
        settings.setdefault("UV_INDEX_STRATEGY", "unsafe-best-match")  # the best version of all indexes, as pip
    return settings


def make(folder, extras):
    """Create the environment `folder` where there is none, and install the course with these extras."""
    problem = complaint(sys.version_info)
    if problem:
        raise SystemExit(problem)
    python = Path(folder, "Scripts", "python.exe") if os.name == "nt" else Path(folder, "bin", "python")
    if not python.exists() or subprocess.run([str(python), "-m", "pip", "--version"], capture_output=True).returncode:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    asked = ["--constraint", str(LOCK), "--editable", "." + ("[%s]" % ",".join(extras) if extras else "")]
    pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check"]
    if subprocess.run([*pip, "--quiet", "--constraint", str(LOCK), "uv"], cwd=ROOT).returncode == 0:
        listed = subprocess.run([str(python), "-m", "pip", "config", "list"], capture_output=True, text=True).stdout
        environment = dict(os.environ, **settings_for_uv(listed, os.environ))
        uv = [str(python), "-m", "uv", "pip", "install", "--python", str(python)]
        if subprocess.run([*uv, *asked], cwd=ROOT, env=environment).returncode == 0:
            return
    print("uv is not to be had here or has failed: pip installs the same versions, in a few minutes.", flush=True)
    subprocess.run([*pip, *asked], cwd=ROOT, check=True)


def oldest_torch():
    """The version that pyproject.toml asks for at least."""
    asked = re.search(r'"torch>=([0-9.]+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8")).group(1)
    return asked if asked.count(".") > 1 else asked + ".0"


def bare(folder):
    """Create the environment `folder` anew, of the newest of everything but torch."""
    found = {(major, minor): path for major, minor, path in pythons()}
    subprocess.run([found.get(BARE_PYTHON, sys.executable), "-m", "venv", "--clear", folder], check=True)
    python = Path(folder, "bin", "python")
    asked = ["torch==" + oldest_torch(), *BARE]
    if subprocess.run([str(python), "-m", "pip", "install", "--quiet", *asked], cwd=ROOT).returncode:
        raise SystemExit("NOT TRIED: %s cannot be had here" % ", ".join(asked))


def newest():
    """The path of this machine's newest Python that the lock has been tried on and that can make an environment."""
    return max(each for each in pythons() if LOWEST <= each[:2] <= NEWEST)[2]


def pythons():
    """(major, minor, path) of the Pythons of this machine that can make an environment."""
    names = ["python3.%d" % minor for minor in range(LOWEST[1], NEWEST[1] + 1)]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")  # most of them in no PATH
    answers = [subprocess.run([candidate, "-c", ASKED], capture_output=True, text=True).stdout
               for candidate in [sys.executable, *filter(None, map(shutil.which, names)),
                                 *map(str, sorted(pyenv.glob("*/bin/python3")))]]
    return [(int(major), int(minor), path) for answer in answers
            for major, minor, path in re.findall(r"^(\d+) (\d+) (.+)$", answer, re.MULTILINE)]


if __name__ == "__main__":
    if sys.argv[1] == "newest":
        print(newest())
    elif sys.argv[1] == "bare":
        bare(sys.argv[2])
    else:
        make(sys.argv[2], sys.argv[3:])
