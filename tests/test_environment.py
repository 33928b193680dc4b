"""requirements.lock holds what pyproject.toml asks for, on every platform; who cannot begin is told why."""

import re
import shutil
import subprocess
import sys
import tomllib
from itertools import product
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from course_lib.runtime.doctor import OLDEST_TORCH
from tools import environment

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
ASKED = [Requirement(line) for lines in (PROJECT["dependencies"], *PROJECT["optional-dependencies"].values())
         for line in lines if not line.startswith("course_lib[")]
PINS = [line for line in environment.LOCK.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
SYSTEMS = {"linux": ("posix", "x86_64"), "darwin": ("posix", "arm64"), "win32": ("nt", "AMD64")}
LOWEST, NEWEST = (f"{major}.{minor}" for major, minor in (environment.LOWEST, environment.NEWEST))


@pytest.mark.parametrize("python, system", [*product((LOWEST, NEWEST), SYSTEMS)])
def test_the_lock_holds_one_version_of_everything_pyproject_asks_for(python, system):
    os_name, machine = SYSTEMS[system]
    platform = {"python_version": python, "python_full_version": f"{python}.9", "sys_platform": system,
                "os_name": os_name, "platform_machine": machine, "implementation_name": "cpython"}

    def here(requirement: Requirement) -> bool:
        return requirement.marker is None or requirement.marker.evaluate(platform)

    pinned = [(canonicalize_name(each.name), str(each.specifier)) for each in map(Requirement, PINS) if here(each)]
    assert len(dict(pinned)) == len(pinned) and all(re.fullmatch(r"==[^,*]+", pin) for _, pin in pinned)
    unmet = [str(each) for each in filter(here, ASKED)
             if not each.specifier.contains(dict(pinned).get(canonicalize_name(each.name), "==0")[2:])]
    assert unmet == [], "run make lock"


def test_the_lock_names_no_address_path_or_option_and_the_same_lowest_python_and_torch_stand_everywhere():
    assert [line for line in PINS if re.search(r"://|file:|@|--|\.whl", line)] == []
    # the machine decides torch's build
    assert [line for line in PINS if re.match("nvidia-|cuda-|triton|pytorch-triton", line)] == []
    assert PROJECT["requires-python"] == f">={LOWEST}"
    assert f"- python>={LOWEST}\n" in (ROOT / "environment.yml").read_text(encoding="utf-8")
    assert f"torch>={OLDEST_TORCH}" in PROJECT["dependencies"] and environment.oldest_torch() == f"{OLDEST_TORCH}.0"


@pytest.mark.parametrize("version, told", [
    ((3, 10, 13), "needs Python 3.11 or newer, and this one is 3.10.13"), (sys.version_info, None)])
def test_a_python_that_cannot_make_the_environment_is_told_why(version, told):
    said = environment.complaint(version)
    assert told in said if told else said is None


@pytest.mark.skipif(shutil.which("make") is None, reason="no make on this machine")
def test_make_says_what_to_do_where_the_named_python_does_not_exist(tmp_path):
    for name in ("Makefile", "requirements.lock", "pyproject.toml"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    made = subprocess.run(["make", "test", "PYTHON=no-such-python"], cwd=tmp_path, capture_output=True, text=True)
    assert made.returncode != 0
    assert "There is no 'no-such-python' here. Install Python 3.11 or newer" in made.stderr


def test_uv_is_handed_what_pip_is_set_to_and_what_is_set_for_uv_stays():
    listed = (":env:.find-links='/wheels'\nglobal.extra-index-url='https://a/simple https://b/simple'\n"
              "global.find-links='/others'\nglobal.timeout='180'\n:env:.cert='/ca.crt'\n")
    assert environment.settings_for_uv(listed, {"SSL_CERT_FILE": "/mine.crt"}) == {
        "UV_FIND_LINKS": "/wheels", "UV_INDEX": "https://a/simple https://b/simple",
        "UV_INDEX_STRATEGY": "unsafe-best-match"}
