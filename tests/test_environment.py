"""pyproject.toml, requirements.lock, environment.yml, the Makefile and the README say the same thing."""

import re
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from itertools import product
from pathlib import Path

import pytest
import yaml
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools import check_python, lock, newer_python

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LOCK_LINES = [line for line in lock.LOCK.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
SYSTEMS = {"linux": ("posix", "x86_64"), "darwin": ("posix", "arm64"), "win32": ("nt", "AMD64")}
PYTHONS = ("3.11", "3.12", "3.13", "3.14")


def asked() -> list[Requirement]:
    """What pyproject.toml asks for: the course and every extra in the lock."""
    extras = [line for extra in lock.EXTRAS for line in PROJECT["optional-dependencies"][extra]]
    return [Requirement(line) for line in PROJECT["dependencies"] + extras]


def platforms() -> list[dict[str, str]]:
    """The marker environments that the lock has to serve."""
    return [{"python_version": python, "python_full_version": f"{python}.9", "sys_platform": system,
             "os_name": os_name, "platform_machine": machine, "implementation_name": "cpython"}
            for python, (system, (os_name, machine)) in product(PYTHONS, SYSTEMS.items())]


def pins_on(platform: dict[str, str]) -> dict[str, list[str]]:
    """Canonical name -> pinned versions that the lock installs on `platform`."""
    pins: dict[str, list[str]] = {}
    for requirement in map(Requirement, LOCK_LINES):
        if requirement.marker is None or requirement.marker.evaluate(platform):
            (pin,) = requirement.specifier
            assert pin.operator == "==", f"{requirement} is not pinned"
            pins.setdefault(canonicalize_name(requirement.name), []).append(pin.version)
    return pins


@pytest.mark.parametrize("platform", platforms(), ids=lambda p: f"{p['sys_platform']}-{p['python_version']}")
def test_the_lock_holds_one_version_of_everything_pyproject_asks_for(platform):
    pins = pins_on(platform)
    assert {name: versions for name, versions in pins.items() if len(versions) > 1} == {}
    unmet = [str(requirement) for requirement in asked()
             if (requirement.marker is None or requirement.marker.evaluate(platform))
             and not requirement.specifier.contains(pins.get(canonicalize_name(requirement.name), ["0"])[0])]
    assert unmet == [], "run make lock"


def test_the_lock_holds_every_extra():
    assert set(PROJECT["optional-dependencies"]) == set(lock.EXTRAS)


def test_the_lock_leaves_the_build_of_torch_and_its_place_to_the_machine():
    assert [line for line in LOCK_LINES if lock.BROUGHT_BY_TORCH.match(line)] == []
    strange = [line for line in LOCK_LINES if re.search(r"://|file:|@|--|\.whl", line)]
    assert strange == [], "the lock names an address, a path, a hash or an option"


def needed_here() -> set[str]:
    """Names of all packages that pyproject's list needs here, directly or through installed ones."""
    names: set[str] = set()
    open_ends = [(requirement.name, extra) for requirement in asked() for extra in ("", *requirement.extras)]
    seen = set(open_ends)
    while open_ends:
        name, extra = open_ends.pop()
        names.add(canonicalize_name(name))
        try:
            lines = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        for line in lines:
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                new = {(needed.name, wanted) for wanted in ("", *needed.extras)} - seen
                seen |= new
                open_ends += new
    return names


def test_the_lock_covers_everything_that_is_needed_here():
    here = pins_on(default_environment())
    unpinned = {name for name in needed_here() - here.keys() if not lock.BROUGHT_BY_TORCH.match(name)}
    assert unpinned == set(), "run make lock"


def test_make_lock_leaves_out_what_a_cuda_build_brings():
    compiled = "torch==2.13.0\nnvidia-nccl-cu13==2 ; sys_platform == 'linux'\ncuda-toolkit==13\ntriton==3.7\n"
    assert lock.without_torch_companions(compiled) == "torch==2.13.0\n"


def test_environment_yml_asks_for_the_same_names_and_ranges_as_pyproject():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    *conda, pip = environment["dependencies"]
    requirements = [Requirement(line) for line in pip["pip"] if not line.startswith("-")]
    assert sorted(map(str, requirements)) == sorted(map(str, asked()))
    assert [line for line in pip["pip"] if line.startswith("-")] == ["-c requirements.lock", "-e ."]
    assert conda == [f"python{PROJECT['requires-python']}", "pip"]


def test_the_same_lowest_python_stands_everywhere():
    lowest = PROJECT["requires-python"].removeprefix(">=")
    assert lock.LOWEST_PYTHON == lowest == ".".join(map(str, check_python.LOWEST)) == PYTHONS[0]


def test_the_newest_python_that_the_lock_is_tried_on_is_the_newest_that_is_looked_for():
    assert ".".join(map(str, newer_python.NEWEST)) == PYTHONS[-1]


def makefile_targets() -> set[str]:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z-]+):", makefile, flags=re.MULTILINE))


PAGES = ["README.md", "CONTRIBUTING.md", ".ci/run", ".github/workflows/ci.yml"]
FOR_AUTHORS = [str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("docs/*/*.md"))]


def make_commands(page: str) -> set[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return set(re.findall(r"(?:^|`|run: |&& |\|\| |^ +)make ([a-z-]+)", text, flags=re.MULTILINE))


@pytest.mark.parametrize("page", [*PAGES, *FOR_AUTHORS])
def test_every_make_command_on_the_page_exists(page):
    assert make_commands(page) - makefile_targets() == set()


@pytest.mark.parametrize("page", PAGES)
def test_the_page_says_how_to_run_every_test(page):
    assert "test" in make_commands(page)


def test_the_readme_lists_ten_notebooks_two_appendices_and_the_capstone_and_links_those_that_exist():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\[?)(\d\d_[a-z_]+)", readme, flags=re.MULTILINE)
    assert [name[:2] for _, name in rows] == [f"{number:02}" for number in range(13)]
    linked = {name for bracket, name in rows if bracket}
    assert linked == {path.stem for path in ROOT.glob("notebooks/*.ipynb")}


@pytest.mark.parametrize("version, missing, told", [
    ((3, 10, 13), [], "needs Python 3.11 or newer, and this one is 3.10.13"),
    ((2, 7, 18), ["venv"], "needs Python 3.11 or newer, and this one is 2.7.18"),
    ((3, 12, 1), ["ensurepip"], "lacks ensurepip"),
])
def test_a_python_that_cannot_make_the_environment_is_told_why(version, missing, told):
    assert told in check_python.complaint(version, missing)


def test_this_python_is_good_enough():
    assert check_python.complaint(sys.version_info, check_python.missing_modules()) is None


@pytest.mark.skipif(shutil.which("make") is None, reason="no make on this machine")
def test_make_says_what_to_do_where_the_named_python_does_not_exist(tmp_path):
    for name in ("Makefile", "requirements.lock", "pyproject.toml"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    command = ["make", "test", "PYTHON=no-such-python"]
    finished = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert finished.returncode != 0
    assert "There is no 'no-such-python' here. Install Python 3.11 or newer" in finished.stderr
