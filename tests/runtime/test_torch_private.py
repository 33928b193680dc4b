"""What torch keeps to itself is used in one file, and all of it is in the torch that is installed."""

import pkgutil
import re
from pathlib import Path

import torch

import course_lib

# Where each is in torch, and what of the course goes without it.
NAMES = {
    "torch.autograd.Variable._execution_engine": "DDP, ZeRO, FSDP and record_memory, which finish when backward ends",
    "torch._C._current_graph_task_id": "FSDP, recompute and record_memory, which tell backward passes apart",
    "torch._C._will_engine_execute_node": "ColumnProduct, which leaves out gradients that nobody wants",
    "torch._C._DisableTorchDispatch": "record_memory, which does not count what it does itself",
    "torch._C._autograd._push_saved_tensors_default_hooks": "record_memory, which sees what the reader's hooks save",
    "torch._C.DispatchKey.CompositeImplicitAutograd": "record_memory, which follows views",
    "torch._C._dispatch_key_for_device": "staging, which puts its own kernels under c10d's operators",
    "torch._C._dispatch_has_kernel_for_dispatch_key": "ring attention, which asks a device for its fused kernel",
    "torch.ops.aten._grouped_mm": "MoELayer, whose experts are one product on a GPU",
    **dict.fromkeys([f"torch.ops.aten._scaled_dot_product_{name}{way}" for way in ("", "_backward") for name in (
        "flash_attention", "efficient_attention", "flash_attention_for_cpu")], "ring attention, a block at a time"),
    "torch._C._distributed_c10d._dump_fr_trace": "checkpoint/hangs.py, which reads Flight Recorder under gloo",
    "torch._C._storage_Use_Count": "offload, which uses pinned memory again",
    "torch._foreach_norm": "clipping", "torch._foreach_mul_": "clipping",
    "torch._ops.OpOverload": "the recorders, which look at operators",
    "torch.distributed.distributed_c10d._hash_ranks_to_str": "make_group, whose groups need not be made by all ranks",
    "torch.distributed.distributed_c10d.default_pg_timeout": "every group that the reader makes: how long it waits",
    "torch.distributed.distributed_c10d.default_pg_nccl_timeout": "the same over NCCL",
    "torch._C._dispatch_keyset_full_after": "record_communication and timelines, which stand in front of operators",
    "torch._C._dispatch_get_all_op_names": "record_communication and timelines, which find c10d's operators",
    "torch._C._dispatch_library": "the class grader, which refuses collectives at c10d's operators",
    "torch._C._dispatch_dump": "the class grader, which refuses them for every device",
    "torch._C._distributed_c10d._ControlCollectives": "the class grader, which refuses collectives over a store",
    "torch.distributed.distributed_c10d._new_process_group_helper": "the graders, where no new group can be made",
    "torch._C._distributed_c10d.Backend": "record_communication and timelines, which see a backend's own methods",
    "torch.ops._c10d_functional": "timelines, which see waits for functional collectives",
    "torch.distributed.distributed_c10d._world": "record_communication, which finds the group of a backend",
    "torch.distributed.distributed_c10d._abort_process_group": "start_ranks, which keeps ranks whose collective hangs",
    "torch.distributed.ProcessGroup._start_coalescing": "record_timeline, which sees batch_isend_irecv as one",
    "torch.distributed.ProcessGroup._end_coalescing": "record_timeline, which sees batch_isend_irecv as one",
    "torch.overrides._get_current_function_mode_stack": "recompute, which restores the default device",
    "torch.utils._device.DeviceContext": "launch, which gives each rank its default device",
    "torch.utils._python_dispatch.TorchDispatchMode": "the recorders, which see every operator",
    "torch.utils._python_dispatch._get_current_dispatch_mode": "the recorders, which share one mode",
    "torch.utils._pytree.tree_flatten": "recompute", "torch.utils._pytree.tree_unflatten": "recompute",
    "torch.utils._pytree.tree_leaves": "tensors_in", "torch.utils._pytree.tree_map": "FSDP and tensor parallelism",
    "torch.utils._pytree.tree_map_only": "staging",
}
COURSE = Path(course_lib.__file__).parent
FILE = COURSE / "runtime" / "torch_private.py"
OWNERS = r"(?:torch|dist|nn|functional|functions|optim|c10d|Variable|ProcessGroup)"  # as the course imports them
PRIVATE = re.compile(rf"^\s*(?:from|import) torch[\w.]*\._\w+|^\s*from torch[\w.]* import .*\b_[a-z]\w*"
                     rf"|(?<![\w.\x22\x27]){OWNERS}(?:\.\w+)*?\._(?!_)\w+", re.MULTILINE)


def missing(names: dict[str, str]) -> list[str]:
    """A sentence for each name that is gone, for whoever brings the course to this torch."""
    told = []
    for name, needed_by in names.items():
        try:
            pkgutil.resolve_name(name)
        except (AttributeError, ImportError):
            told.append(f"torch {torch.__version__} has no {name}. It is needed by {needed_by}: look for what has "
                        "taken its place, and change course_lib/runtime/torch_private.py")
    return told


def test_torch_still_has_every_private_name_and_one_that_is_gone_is_told_with_who_needs_it():
    assert missing({name: user for name, user in NAMES.items()
                    if torch.__version__ >= "2.9" or not name.endswith("_dump_fr_trace")}) == []  # older: NCCL's alone
    (sentence,) = missing({"torch._C._gone_by_now": "record_memory"})
    assert "has no torch._C._gone_by_now. It is needed by record_memory" in sentence


def test_no_other_file_uses_what_torch_keeps_to_itself_and_that_file_has_a_table_of_it():
    found = [f"{path.relative_to(COURSE)} uses {use}: take it from course_lib/runtime/torch_private.py"
             for path in sorted(COURSE.rglob("*.py")) if path != FILE
             for use in PRIVATE.findall(path.read_text(encoding="utf-8"))]
    assert found == []
    used = {use.split()[-1].rpartition(".")[2] for use in PRIVATE.findall(FILE.read_text(encoding="utf-8"))}
    assert used - {part for name in NAMES for part in name.split(".")} == set() and len(used) > 10
    private = ["import torch\ntorch._C.x()", "from torch.utils import _pytree", "c10d._x = 1",
               "from torch.utils._pytree import tree_map"]
    public = ["torch.ones(2)._version", "self._x", "nn.Linear.__init__"]
    assert all(map(PRIVATE.findall, private)) and not any(map(PRIVATE.findall, public))
