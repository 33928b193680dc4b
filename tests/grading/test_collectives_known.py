"""Which functions of torch an exercise may refuse: all of its collectives, under every name that this torch has."""

from types import FunctionType

import pytest
import torch.distributed as dist
from torch.distributed import distributed_c10d

from course_lib.grading.trusted import sandbox
from course_lib.grading.trusted.inside import rank, student_code
from course_lib.grading.trusted.inside.student_code import FUNCTIONS_OF
from course_lib.runtime import launch

WORDS = ("reduce", "gather", "scatter", "toall", "broadcast", "barrier")
SEND_AND_RECEIVE = frozenset({"send", "recv"})


def is_collective(name):
    return not name.startswith("__") and any(word in name.replace("_", "").lower() for word in WORDS)


def test_every_collective_of_this_torch_is_known_by_each_of_its_names():
    public = {name for name in distributed_c10d.__all__
              if is_collective(name) and type(getattr(distributed_c10d, name)) is FunctionType}
    assert public - {name for names in FUNCTIONS_OF.values() for name in names} == set()
    assert {"all_reduce", "broadcast_object_list", "monitored_barrier"} <= public


@pytest.mark.parametrize("source, operations, said", [
    *((f"def mine(x):\n    dist.{name}(x)", SEND_AND_RECEIVE, f"it uses dist.{name}: write it with send and recv")
      for names in FUNCTIONS_OF.values() for name in names),
    # what the course has of a chapter is refused where torch is free to use
    *((source, None, f"it uses course_lib.{package}: that is what you are asked to write") for source, package in (
        ("from course_lib.why_distribute import training_memory", "why_distribute"),
        ("from course_lib import data_parallel", "data_parallel"),
        ("import course_lib\ncourse_lib.pipeline_parallel.one_f_one_b(2, 4)", "pipeline_parallel"))),
    ("from course_lib.runtime import device", None, None),
])
def test_what_an_exercise_does_not_allow_is_refused_by_every_name(source, operations, said):
    cell = {"source": source, "name": "the cell", "own": True}
    assert student_code.prepare([cell], operations).refusal == said


def left(allowed):
    """Names of the module's functions and of the group's methods that still work on a rank where these are allowed."""
    methods = [name for name in dir(dist.ProcessGroup) if is_collective(name)]
    functions = [name for name in distributed_c10d.__all__
                 if is_collective(name) and type(getattr(dist, name, None)) is FunctionType]
    rank.forbid(frozenset(allowed))
    assert len(methods) > 10 and len(functions) > 10
    return [name for home, names in ((dist.ProcessGroup, methods), (dist, functions)) for name in names
            if getattr(home, name).__name__ != "refuse"]


@pytest.mark.parametrize("allowed, names", [
    (SEND_AND_RECEIVE, set()), (["reduce_scatter"], {"reduce_scatter", "_reduce_scatter_base"})])
def test_on_an_isolated_rank_what_an_exercise_asks_for_is_left_under_all_its_names_and_nothing_else(allowed, names):
    (found,) = launch(left, allowed, world_size=1)
    assert names <= set(found) and all(name.strip("_").startswith("reduce_scatter") for name in found)


def test_isolated_ranks_see_no_gpu_with_and_without_namespaces():
    assert {sandbox.environment(separate)["CUDA_VISIBLE_DEVICES"] for separate in (True, False)} == {""}
