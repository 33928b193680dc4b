"""The planner, the closed forms, facts, schedules and widgets need nothing but Python: they run in a browser."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BLOCKED = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "numpy", "matplotlib", "scipy", "pandas", "IPython", "anywidget"):
            raise ImportError(f"{name} is not here")

sys.meta_path.insert(0, Blocker())
"""
NOTHING = "module 'course_lib.{}' has no attribute 'nothing_of_this_name'\n"


def run(code: str) -> str:
    """What `code` prints in a process of its own."""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=120, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_runtime_leaves_to_others_what_a_kernel_at_rest_need_not_hold():
    """torch takes 200 MB and 0.8 s of a core; what the course adds is 5 MB and 0.15 s, most of it one collection."""
    heavy = tuple(f"{name}." for name in (
        "matplotlib IPython ipywidgets anywidget pandas scipy sympy mpmath networkx PIL pygments "
        "torch._dynamo torch._inductor torch.distributed.tensor torch.distributed.fsdp "
        "torch.distributed.pipelining torch.distributed.checkpoint").split())
    found = run("import sys, course_lib.runtime\nprint(*sys.modules)").split()
    assert "torch" in found and [name for name in found if f"{name}.".startswith(heavy)] == []
    ours = {name.split(".")[1] for name in found if name.startswith("course_lib.")}
    assert ours == {"lazy", "pictures", "runtime"}


def test_facts_costs_and_planner_import_plan_estimate_and_predict_and_schedules_run_without_torch_or_numpy():
    plans, mfu, predicted, *bubbles = run(BLOCKED + """
import importlib, pkgutil
import course_lib.costs, course_lib.facts, course_lib.planner

NEED_TORCH = {"course_lib.planner.machine"}  # it measures
for package in (course_lib.costs, course_lib.facts, course_lib.planner):
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        if module.name not in NEED_TORCH:
            importlib.import_module(module.name)
from course_lib.facts import model, published_rows
from course_lib.hybrid_parallel import ParallelLayout
from course_lib.pipeline_parallel import interleaved_1f1b, simulate, validate, zb_h1
from course_lib.planner import Job, cluster, estimate, plan, shape_from_config
from course_lib.planner.validate import predict

llama = model("Llama 3 8B")
print(len(plan(llama, cluster("H100", 16), 128)))
print(estimate(llama, cluster("H100", 16), ParallelLayout(dp=8, tp=2, zero_stage=1), 128).mfu)
print(predict(published_rows()[0]))
for schedule in (interleaved_1f1b(4, 8, 2), zb_h1(4, 8)):
    validate(schedule)
    print(simulate(schedule).bubble_of_ideal)
""").split()
    assert int(plans) > 0 and 0.2 < float(mfu) < 0.7 and float(predicted) > 0
    assert all(0 < float(bubble) < 0.5 for bubble in bubbles) and len(bubbles) == 2


def test_every_widget_computes_what_it_shows_with_nothing_but_python_and_traitlets():
    on_a_page = "import sys\nsys.path.insert(0, 'tools/site/live/browser/python')\nimport anywidget\n"  # its own
    without, said = run(on_a_page + BLOCKED + """
import importlib, pkgutil
from course_lib import widgets
from course_lib.widgets.base import Explorable

found = []
for module in pkgutil.iter_modules(widgets.__path__, "course_lib.widgets."):
    if not module.name.endswith("_picture"):
        found += vars(importlib.import_module(module.name)).values()
kinds = {kind for kind in found if isinstance(kind, type) and issubclass(kind, Explorable)
         and kind.__name__ in widgets.__all__ and kind is not Explorable}
assert kinds
print([kind.__name__ for kind in kinds if not (kind().frames and kind().sentence())])
guess = widgets.predict("How many?", unit="bytes")
guess.lock("1.3 kB")
print(guess.meaning)
""").splitlines()
    assert (without, said) == ("[]", "1,300 bytes")


@pytest.mark.ci
def test_what_loads_on_use_is_what_its_module_has_whoever_imports_that_module_first():
    assert run("""
import course_lib.hybrid_parallel.parallelize, course_lib.pipeline_parallel.stages
from types import FunctionType, ModuleType
from course_lib import hybrid_parallel, pipeline_parallel

assert isinstance(hybrid_parallel.parallelize, FunctionType) and isinstance(pipeline_parallel.partition, FunctionType)
assert isinstance(hybrid_parallel.kinds, ModuleType) and hybrid_parallel.KINDS is hybrid_parallel.kinds.KINDS
for package in (hybrid_parallel, pipeline_parallel):
    assert all(getattr(package, name) is not None for name in package.__all__)
    assert {*package.__all__} <= {*dir(package)}
    try:
        package.nothing_of_this_name
    except AttributeError as error:
        print(error)
exec("from course_lib.hybrid_parallel import *")
assert HybridTrainer is hybrid_parallel.trainer.HybridTrainer
""") == NOTHING.format("hybrid_parallel") + NOTHING.format("pipeline_parallel")
