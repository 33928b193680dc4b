"""What the course uses of torch and torch calls private: whoever brings the course to a new torch begins here.

Every other file of course_lib takes these names from here. tests/runtime/test_torch_private.py says what of the course
goes without each, and that all are in the torch that is installed. They are those of torch 2.13, in requirements.lock.
"""

import ctypes
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch._C._distributed_c10d import Backend  # whose object a process group has for each kind of device
from torch._C._distributed_c10d import _ControlCollectives as ControlCollectives  # collectives over a store
from torch._ops import OpOverload
from torch.autograd import Variable
from torch.overrides import _get_current_function_mode_stack as function_modes
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._python_dispatch import _get_current_dispatch_mode as current_dispatch_mode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_map_only, tree_unflatten

__all__ = [
    "abort_groups", "after_backend_select", "Backend", "BACKEND_SELECT", "backward_number", "COMPOSITE",
    "ControlCollectives", "count_users", "current_dispatch_mode", "DeviceContext", "dispatch_key",
    "efficient_attention", "efficient_attention_backward", "flash_attention", "flash_attention_backward",
    "flight_recorder_trace", "foreach_multiply", "foreach_norm", "function_modes", "grouped_mm", "has_kernel",
    "host_attention", "host_attention_backward", "list_groups", "list_operators", "name_new_groups", "OpOverload",
    "refuse_new_groups", "replace_attribute", "replace_kernels", "saved_tensor_hooks_through", "set_default_timeout",
    "TorchDispatchMode", "tree_flatten", "tree_leaves", "tree_map", "tree_map_only", "tree_unflatten", "wait_tensor",
    "when_backward_ends", "will_run", "without_dispatch", "wrap_batches",
]

COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd  # operators that are made of others
BACKEND_SELECT = "BackendSelect"  # a dispatch key that every thread has, before all of devices
_AFTER = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)


def after_backend_select(keyset: Any) -> Any:
    """The dispatch keys of a call that are left behind BACKEND_SELECT."""
    return keyset & _AFTER


def list_operators(namespace: str) -> list[OpOverload]:
    """All operators of the dispatcher in a namespace, as this torch has them."""
    names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith(f"{namespace}::")]
    return [getattr(getattr(torch.ops, namespace), name.partition("::")[2].partition(".")[0]).default for name in names]


def has_kernel(operator: OpOverload, device: torch.device) -> bool:
    """Whether `operator` has a kernel for tensors on `device`, and not one for all devices."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), dispatch_key(device.type))


def replace_kernels(kernels: dict[OpOverload, Callable]) -> None:
    """Whoever calls one of these operators of c10d, from Python or C++ and on whatever device, calls what is given for
    it: for good.
    """
    library = torch._C._dispatch_library("IMPL", "c10d", "")
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(library))  # its end would take them back; and now nothing refers to it
    for operator, kernel in kernels.items():
        name = operator._schema.name
        for key in re.findall(r"^([A-Z]\w+): registered at", torch._C._dispatch_dump(name), re.MULTILINE):
            library.impl(name.removeprefix("c10d::"), key, kernel)


def refuse_new_groups(refuse: Callable) -> AbstractContextManager[None]:
    """Whoever makes a process group inside, by whatever function, calls `refuse`."""
    return replace_attribute(c10d, "_new_process_group_helper", refuse)


def wait_tensor() -> OpOverload:
    """The operator that waits for what a functional collective fills."""
    return torch.ops._c10d_functional.wait_tensor.default


def list_groups() -> list[dist.ProcessGroup]:
    """All process groups that this process is in."""
    return list(c10d._world.pg_map)


def when_backward_ends(then: Callable[[], None]) -> None:
    """Inside a backward pass: call `then` once, when the pass has done all else."""
    Variable._execution_engine.queue_callback(then)


# Which backward pass this thread is in; -1 outside of all. One that keeps the graph has a number of its own.
backward_number = torch._C._current_graph_task_id
without_dispatch = torch._C._DisableTorchDispatch  # a context in which no dispatch mode sees the operators
dispatch_key = torch._C._dispatch_key_for_device  # what torch.library calls the kernels of a kind of device

# Fused attention that returns lse. A GPU's in 16 bits, a GPU's in up to 32, a CPU's.
flash_attention = torch.ops.aten._scaled_dot_product_flash_attention
flash_attention_backward = torch.ops.aten._scaled_dot_product_flash_attention_backward
efficient_attention = torch.ops.aten._scaled_dot_product_efficient_attention
efficient_attention_backward = torch.ops.aten._scaled_dot_product_efficient_attention_backward
host_attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
host_attention_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
grouped_mm = torch.ops.aten._grouped_mm  # torch.nn.functional's, which came in torch 2.10


# One kernel for all tensors of a list, where they have one dtype and lie on one GPU.
foreach_norm, foreach_multiply = torch._foreach_norm, torch._foreach_mul_


def count_users(tensor: torch.Tensor) -> int:
    """How many tensors, `tensor` among them, have its memory."""
    return torch._C._storage_Use_Count(tensor.untyped_storage()._cdata) - 1  # besides the storage that is asked


def will_run(node: Any) -> bool:
    """Whether the backward pass that runs now comes to this node of the graph. AttributeError in a torch without it."""
    return torch._C._will_engine_execute_node(node)


def flight_recorder_trace() -> bytes:
    """The pickle of what Flight Recorder knows of this rank's collectives. AttributeError in a torch older than 2.9."""
    return torch._C._distributed_c10d._dump_fr_trace()


def abort_groups() -> None:
    """End what all process groups of this process have under way, from any thread; there is no group afterwards. For
    NCCL; RuntimeError for a backend that cannot do that.
    """
    if dist.is_initialized():
        c10d._abort_process_group()


def set_default_timeout(timeout: timedelta) -> None:
    """How long calls on process groups wait that are made from now on, unless their maker says otherwise."""
    c10d.default_pg_timeout = c10d.default_pg_nccl_timeout = timeout


def name_new_groups(name: str) -> AbstractContextManager[None]:
    """Process groups that are made inside are called `name`; torch would count the groups this rank is in."""
    return replace_attribute(c10d, "_hash_ranks_to_str", lambda ranks: name)


def saved_tensor_hooks_through(change: Callable[[Callable], Callable]) -> AbstractContextManager[None]:
    """Whoever sets hooks for saved tensors inside sets `change(pack)` in place of `pack`."""
    push = torch._C._autograd._push_saved_tensors_default_hooks
    return replace_attribute(torch._C._autograd, "_push_saved_tensors_default_hooks",
                    lambda pack, unpack: push(change(pack), unpack))


def wrap_batches(beginning: Callable[[Callable], Callable], ending: Callable[[Callable], Callable]) -> None:
    """Between the two methods a process group only notes what it is asked for, and then does it all at once."""
    dist.ProcessGroup._start_coalescing = beginning(dist.ProcessGroup._start_coalescing)
    dist.ProcessGroup._end_coalescing = ending(dist.ProcessGroup._end_coalescing)


@contextmanager
def replace_attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    """`owner.name` is `value` until the block ends."""
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


def remove_library(library: torch.library.Library) -> None:
    """Take back what `library` has registered."""
    library._destroy()
