"""Which functions of torch an exercise may refuse: all of its collectives, under every name that this torch has."""

import re
import warnings
from contextlib import suppress
from functools import partial
from types import BuiltinFunctionType, FunctionType

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional_collectives
import torch.distributed.nn.functional as differentiable
from torch import nn
from torch._C import _distributed_c10d as bound
from torch.distributed import distributed_c10d

from course_lib.grading.trusted import sandbox
from course_lib.grading.trusted.inside import doors, student_code
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


# What would end the group, wait for another rank, or is of no use to a caller: a walk leaves it out.
LEFT_OUT = re.compile("init|destroy|abort|shutdown|shrink|split|merge|new_|send|recv|p2p|register|set_|^breakpoint|"
                      "store|wait_all|suspend|resume|remote|timeout|dump|connect|block|eager|update|deprec|clean|premul")
OPERATORS = "c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor", "symm_mem"


def list_callables():
    """By name, whatever torch has that could send: functions, methods of a group and its backend, operators."""
    for module in (dist, distributed_c10d, bound, functional_collectives, differentiable):
        for name, value in list(vars(module).items()):
            if isinstance(value, FunctionType | BuiltinFunctionType):
                yield f"{module.__name__}.{name}", value
    group = dist.group.WORLD
    for owner in (group, group._get_backend(torch.device("cpu"))):
        for name in dir(type(owner)):
            if not name.startswith("__") and callable(getattr(type(owner), name)):
                yield f"{type(owner).__name__}.{name}", partial(getattr(type(owner), name), owner)
    for name in torch._C._dispatch_get_all_op_names():
        space, _, operator = name.partition("::")
        if space in OPERATORS:
            yield name, getattr(getattr(torch.ops, space), operator.partition(".")[0])
    yield "DDP", lambda: nn.parallel.DistributedDataParallel(nn.Linear(2, 2))


def list_arguments(name, group):
    """Arguments of every form that one of them may want, in a group of one rank."""
    x = torch.ones(2)
    xs, lists = [x], [[x]]
    yield from ((), (x,), (xs,), (x, x), (x, xs), (xs, x), (xs, xs), (lists, xs), (xs, lists), ([None], 1))
    for t in (x, xs):
        for who in (group, group.group_name):
            yield from ((t, "sum", who), (t, "sum", 1, who), (t, 1, who), (t, [2], [2], who), (t, ["sum"], who))
    if "::" not in name:  # some of these operators divide by a size of 0
        yield from ((x, 0), (x, group), (x, 0, group), (x, "sum", 0, group), (x, 0, 0, group), (group, xs, 100, 0))
    if name.startswith("c10d::"):
        group = group.boxed()
        yield from ((xs, group, 0, 0, True, -1), (lists, xs, group, True, -1), (x, x, group, True, -1),
                    (x, x, group, [], [], True, -1), (xs, xs, group, True, -1), (lists, xs, group, 0, -1),
                    (xs, lists, group, 0, True, -1), (x, group, [], True, -1), (lists, xs, group, True),
                    (xs, xs, group, -1))


def walk():
    """Which of them have the backend carry a collective, by its own count of collectives."""
    warnings.simplefilter("ignore")
    group, found = dist.group.WORLD, []
    count = group._get_backend(torch.device("cpu"))._get_sequence_number_for_group
    for name, function in list_callables():
        before = count()
        for arguments in () if LEFT_OUT.search(name.rpartition(".")[2]) else list_arguments(name, group):
            with suppress(Exception):
                function(*arguments)
        if count() > before:
            found.append(name)
    return found


def walk_before_and_after(allowed):
    before, told = walk(), []
    doors.forbid(frozenset(allowed), told.append)
    return before, walk(), told


@pytest.mark.parametrize("allowed, left", [(SEND_AND_RECEIVE, 0), (["reduce_scatter"], 20)])
def test_of_all_that_torch_has_nothing_carries_a_collective_but_what_an_exercise_asks_for(allowed, left):
    ((before, after, told),) = launch(walk_before_and_after, allowed, world_size=1)
    assert len(before) > 120 and {
        "DDP", "c10d::barrier", "_c10d_functional::all_reduce", "ProcessGroup.allreduce",
        "ProcessGroupGloo.allreduce", "torch.distributed._broadcast_coalesced", "torch.distributed.all_gather_object",
    } <= set(before)
    assert len(after) >= left and [name for name in after if "reducescatter" not in name.replace("_", "")] == []
    assert {"called dist.all_reduce, by c10d::allreduce_", "called dist.all_gather, by Backend.allgather"} <= set(told)


def test_isolated_ranks_see_no_gpu_with_and_without_namespaces():
    assert {sandbox.environment(separate)["CUDA_VISIBLE_DEVICES"] for separate in (True, False)} == {""}
