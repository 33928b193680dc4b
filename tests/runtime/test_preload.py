"""What the fork server imports touches no driver and starts no thread: a rank that is forked from it could use neither.
"""

import json
import os
import pkgutil
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import course_lib
from course_lib.runtime import launcher
from course_lib.runtime.ranks.fork_pool import ForkPool
from course_lib.runtime.ranks.home import PRELOAD

ROOT = Path(__file__).resolve().parents[2]
forks = pytest.mark.skipif(not isinstance(launcher.pool(), ForkPool), reason="only a server that forks imports ahead")


def said_by(script, *arguments, path, cwd):
    """What `script` prints last, as JSON."""
    ran = subprocess.run([sys.executable, "-P", "-c", script, *arguments], capture_output=True, text=True, timeout=80,
                         cwd=cwd, env={**os.environ, "PYTHONPATH": f"{path}:{cwd}"})
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


# As in a CUDA build: there is a triton, and it works, unless somebody asks it for its driver.
IMPORTS = '''
import importlib, json, os, sys, threading
from importlib.machinery import ModuleSpec
from unittest.mock import MagicMock

touched = []

class Anything(MagicMock):
    """Module, decorator, constant, base: whatever an import needs."""
    __version__, __path__ = "3.0.0", []
    def __getattr__(self, name):
        if name in ("active", "get_current_device", "get_current_target", "get_device_properties"):
            touched.append(f"triton's {name}")
        return super().__getattr__(name)

class Finder:
    def find_spec(self, name, *_):
        return ModuleSpec(name, self) if name.split(".")[0] == "triton" else None
    def create_module(self, spec):
        return Anything()
    def exec_module(self, module):
        pass

sys.meta_path.insert(0, Finder())
import numpy  # its BLAS has threads of its own, which look after themselves at a fork
before = len(os.listdir("/proc/self/task"))

import torch
def initialise(name):
    def refuse(*_, **__):
        touched.append(name)
        raise RuntimeError(f"{name} initialises the driver")
    return refuse
for name in ("_lazy_init", "current_device", "get_device_properties", "get_device_capability"):
    setattr(torch.cuda, name, initialise(f"torch.cuda.{name}"))
for name in ("_cuda_init", "_cuda_getDeviceCount", "_cuda_getDevice", "_cuda_setDevice", "_accelerator_getDeviceIndex",
             "_accelerator_setDeviceIndex", "_cuda_getCurrentRawStream"):
    setattr(torch._C, name, initialise(f"torch._C.{name}"))

for name in sys.argv[1:]:
    importlib.import_module(name)
print(json.dumps([touched, torch.cuda.is_initialized(), any(name.split(".")[0] == "triton" for name in sys.modules),
                  threading.active_count(), len(os.listdir("/proc/self/task")) - before]))
'''
FAULTY = """
import contextlib, threading, time
import torch, triton
triton.runtime.driver.active
with contextlib.suppress(RuntimeError):
    torch.cuda.current_device()
threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
"""


@pytest.mark.ci
@pytest.mark.skipif(sys.platform != "linux", reason="only there ranks are forked")
def test_of_all_that_ranks_need_and_a_faulty_module_that_one_alone_touches_a_driver_or_starts_a_thread(tmp_path):
    (tmp_path / "faulty.py").write_text(FAULTY)
    chapters = [f"course_lib.{each.name}" for each in pkgutil.iter_modules(course_lib.__path__)]
    assert {"course_lib.runtime", "course_lib.hybrid_parallel"} < set(chapters)
    touched, initialised, triton, threads, tasks = said_by(IMPORTS, *PRELOAD, *chapters, "faulty", path=ROOT,
                                                           cwd=tmp_path)
    assert touched == ["triton's active", "torch.cuda.current_device"] and not initialised and triton
    assert (threads, tasks) == (2, 1)


EDITED = """
import json, sys
from pathlib import Path
import course_lib
from course_lib.runtime import RankFailed, launch
from course_lib.runtime.launcher import pool

def ask():
    ahead = [name for name in ("course_lib.number", "course_lib.twice") if name in sys.modules]
    from course_lib import twice
    return len(ahead), twice.answer

def answers():
    pool().wait_for_preload()
    try:
        return launch(ask, world_size=2, timeout=60)
    except RankFailed as error:
        return "refused"

here, said = Path(course_lib.__path__[0]), []
(here / "twice.py").write_text("from course_lib.number import number; answer = 2 * number")
for number in ("1", "100", "", "3", None):
    pool().wait_for_preload()
    (here / "number.py").write_text(f"number = {number}") if number is not None else (here / "number.py").unlink()
    said += [answers(), answers()]  # the first brings word of what ranks import
print(json.dumps(said))
"""


@pytest.mark.ci
@forks
def test_the_courses_modules_are_imported_once_for_all_launches_and_again_when_one_was_edited(tmp_path):
    shutil.copytree(ROOT / "course_lib", tmp_path / "course_lib", ignore=shutil.ignore_patterns("__pycache__"))
    expected = [pair for answer in (2, 200, None, 6, None)
                for pair in (([[0, answer]] * 2, [[2, answer]] * 2) if answer else ("refused", "refused"))]
    assert said_by(EDITED, path=tmp_path, cwd=tmp_path) == expected
