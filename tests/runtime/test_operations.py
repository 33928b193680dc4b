"""The registry of operations has all that the installed torch has, and whoever names operations reads it; what torch
keeps to itself and the course uses is there, too, and used in one file.
"""

import ast
import json
import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.torch_version import TorchVersion

from course_lib.costs import links
from course_lib.runtime import launch, record_timeline
from course_lib.runtime.operations import (
    NEW_IN,
    OPERATIONS,
    Form,
    Operation,
    Transfer,
    find_operation,
    list_collectives,
    list_methods,
    name_of_method,
)
from tests.runtime.test_communication import cases
from tools.gpu_day import operations as gpu_day

# Methods of ProcessGroup that pass no number on, and what they do instead.
OTHER_METHODS = {
    "says what it is": "name rank size boxed unbox group_name group_desc bound_device_id get_group_store _id "
                       "_backend_id _device_types _get_backend _get_backend_name _has_hooks "
                       "_get_sequence_number_for_group",
    "is told what to be": "set_timeout _set_group_name _set_group_desc _set_default_backend _register_backend "
                          "_set_sequence_number_for_group _register_on_completion_hook _enable_collectives_timing "
                          "use_pg_for_symm_mem_rendezvous",
    "begins, ends or divides groups": "abort shutdown split_group merge_remote_group _wait_for_pending_works",
    "puts calls together, which pending wraps by itself": "_start_coalescing _end_coalescing",
    "is no method": "BackendType CUSTOM GLOO MPI NCCL UCC UNDEFINED XCCL _pybind11_conduit_v1_",
}


def test_every_operator_of_this_torch_that_communicates_has_a_row_and_every_row_is_in_it():
    there = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("c10d::")]
    assert len(there) > 15
    assert {name for name in there if find_operation(name) is None} == {"c10d::check_for_nan"}  # which sends nothing
    in_rows = {f"c10d::{operator}" for row in OPERATIONS.values() for form in row.forms for operator in form.operators}
    assert in_rows - set(there) == set() and len(in_rows) == sum(
        len(form.operators) for row in OPERATIONS.values() for form in row.forms)


def test_every_method_of_a_process_group_has_a_row_or_passes_nothing_on():
    others = " ".join(OTHER_METHODS.values()).split()
    there = {name for name in dir(dist.ProcessGroup) if not name.startswith("__")}
    assert there - list_methods().keys() - set(others) == set()
    assert {name_of_method(name) for name in others} == {None}
    for row in OPERATIONS.values():
        assert {name_of_method(method) for form in row.forms for method in form.methods} == {row.name}
    # of a torch that is newer than the rows
    newer = "reduce_scatter_v", "all_gather_single_3", "_broadcast_oop", "reduce"
    assert [name_of_method(name) for name in newer] == ["reduce_scatter", "all_gather", "broadcast", "reduce"]


def test_every_function_of_a_row_is_in_this_torch_unless_it_came_later():
    for row in OPERATIONS.values():
        assert {form.function for form in row.forms} <= set(row.functions)
        missing = [name for name in row.functions if not hasattr(distributed_c10d, name)]
        assert all(TorchVersion(torch.__version__) < NEW_IN[name] for name in missing), missing


def test_hand_counted_bytes_and_the_day_with_gpus_have_every_operation():
    counted = {op for _, op, *_ in cases(2, 0).values()}
    assert OPERATIONS.keys() - counted == {"send", "recv"}  # those stand in tests of their own
    tried = " ".join(gpu_day.OPERATIONS)
    assert [name for name in OPERATIONS if name not in tried] == []


def test_closed_forms_have_the_same_names_and_a_rank_sends_or_receives_at_least_what_they_say():
    assert {op for op, _ in links.COSTS} <= links.BOUNDS.keys() == OPERATIONS.keys() - {"send", "recv", "barrier"}
    for op, bound in links.BOUNDS.items():
        for n in (1, 2, 3, 4):
            sent = [OPERATIONS[op].sent_bytes(Transfer(12, n, r, kept=12 // n)) for r in range(n)]
            busiest = max(sent) if op != "gather" else sum(sent)  # there it is the root, which receives
            assert busiest == 12 * bound(n), (op, n)


def put_together():
    n = dist.get_world_size()
    with record_timeline() as timeline:
        with dist._coalescing_manager():
            for size in (4, 6):
                dist.all_gather_into_tensor(torch.zeros(n * size), torch.ones(size))
        with dist._coalescing_manager():
            for size in (4, 6):
                dist.reduce_scatter_tensor(torch.zeros(size), torch.ones(n * size))
    return [(event.name, event.labels["bytes"]) for event in timeline.events]


def test_calls_that_torch_makes_one_of_are_seen_under_whatever_name_its_method_has_by_now():
    """torch 2.13 calls them all_gather_single_coalesced and reduce_scatter_single_coalesced."""
    seen = [("all_gather_into_tensor", 120), ("reduce_scatter_tensor", 120)]  # 10 numbers, and 20 of both ranks
    assert launch(put_together, world_size=2) == [seen] * 2


FAKE = Operation("quantum_reduce", ("quantum_reduce",), lambda t: 7 * t.M,
                 (Form("quantum_reduce", ("quantum_reduce",), ("quantum_reduce_",)),))


def look_everywhere():
    """In a process of its own: an operation that torch does not have, at everybody who names operations."""
    OPERATIONS[FAKE.name] = FAKE
    library = torch.library.Library("c10d", "FRAGMENT")
    library.define("quantum_reduce_(Tensor[] tensors, __torch__.torch.classes.c10d.ProcessGroup process_group) -> ()")
    library.impl("quantum_reduce_", lambda tensors, group: None, "CPU")
    dist.ProcessGroup.quantum_reduce = lambda group, tensors: torch.ops.c10d.quantum_reduce_(tensors, group.boxed())
    dist.quantum_reduce = None

    from course_lib.grading.trusted.inside import doors, student_code
    from course_lib.runtime import record_communication, record_timeline, staging
    from course_lib.runtime.instruments import pending

    found = {}
    staging.dispatch_key, current = lambda kind: "CUDA", torch.accelerator.current_accelerator
    torch.accelerator.current_accelerator = lambda *_: torch.device("cuda")
    staging.install()
    torch.accelerator.current_accelerator = current
    found["staging"] = torch._C._dispatch_has_kernel_for_dispatch_key("c10d::quantum_reduce_", "CUDA")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    with record_communication() as log, record_timeline() as timeline:
        dist.group.WORLD.quantum_reduce([torch.ones(3)])
    found["communication"] = [(event.op, event.message_bytes, event.sent_bytes) for event in log.events]
    found["timeline"] = [event.name for event in timeline.events]
    found["pending"] = pending.counts["quantum_reduce", (0,)]
    found["grader's reading"] = student_code.library_call(ast.parse("dist.quantum_reduce(x)"), frozenset({"send"}))
    doors.forbid(frozenset({"send"}))
    try:
        dist.group.WORLD.quantum_reduce([torch.ones(3)])
    except doors.Refused as error:
        found["grader's refusal"] = str(error)
    print(json.dumps(found))


def test_an_operation_that_is_added_is_known_to_everybody_who_names_operations():
    script = "from tests.runtime.test_operations import look_everywhere; look_everywhere()"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=80,
                         cwd=Path(__file__).parents[2])
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout.splitlines()[-1]) == {
        "staging": True, "communication": [["quantum_reduce", 12, 84]], "timeline": ["quantum_reduce"], "pending": 1,
        "grader's reading": "it uses dist.quantum_reduce: write it with send", "grader's refusal":
        "it uses dist.quantum_reduce, by c10d::quantum_reduce_: write it with send"}
    assert FAKE.name not in list_collectives()
