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


def test_every_name_is_refused_where_the_exercise_asks_for_send_and_receive():
    for names in FUNCTIONS_OF.values():
        for name in names:
            cell = {"source": f"def mine(x):\n    dist.{name}(x)", "name": "cell 1", "own": True}
            refusal = student_code.prepare([cell], SEND_AND_RECEIVE).refusal
            assert refusal == f"it uses dist.{name}: write it with send and recv"


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


@pytest.mark.parametrize("source, package", [
    ("from course_lib.why_distribute import training_memory", "course_lib.why_distribute"),
    ("from course_lib import data_parallel", "course_lib.data_parallel"),
    ("import course_lib\ncourse_lib.pipeline_parallel.one_f_one_b(2, 4)", "course_lib.pipeline_parallel"),
    ("from course_lib.runtime import device", None),
])
def test_what_the_course_has_of_a_chapter_is_refused_where_torch_is_free_to_use(source, package):
    refusal = student_code.prepare([{"source": source, "name": "the cell", "own": True}], None).refusal
    assert refusal == (package and f"it uses {package}: that is what you are asked to write")
