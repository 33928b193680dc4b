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


def test_on_an_isolated_rank_no_collective_is_left_on_the_module_or_on_the_group():
    def left():
        methods = [name for name in dir(dist.ProcessGroup) if is_collective(name)]
        rank.forbid(SEND_AND_RECEIVE)
        functions = [name for name in distributed_c10d.__all__
                     if is_collective(name) and type(getattr(dist, name, None)) is FunctionType]
        assert len(methods) > 10 and len(functions) > 10
        return ([name for name in methods if getattr(dist.ProcessGroup, name).__name__ != "refuse"],
                [name for name in functions if getattr(dist, name).__name__ != "refuse"])

    assert launch(left, world_size=1) == [([], [])]


def test_an_exercise_that_asks_for_reduce_scatter_gets_it_under_all_its_names_and_reduce_alone_is_refused():
    def left():
        rank.forbid(frozenset({"reduce_scatter"}))
        names = ("reduce", "reduce_scatter", "_reduce_scatter_base", "allreduce")
        return [name for name in names if getattr(dist.ProcessGroup, name).__name__ != "refuse"]

    assert launch(left, world_size=1) == [["reduce_scatter", "_reduce_scatter_base"]]


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
