"""What one c10d operation moves: its field-standard name, its message, and what this rank sends for it.

Every call of torch.distributed, whatever its front end (`dist.all_reduce`, DDP's C++ reducer, FSDP2, DTensor,
the functional collectives), ends in one operator of the namespaces below; `describe` makes an event of it.

    M  message: the largest buffer the operation handles, in bytes (the full output of all_gather and gather,
       the full input of reduce_scatter, scatter and all_to_all)
    n  ranks in the group
    r  this rank's place in the group; root: the root's place

Bytes sent follow the ring convention, as NCCL's bus bandwidth does, but exactly for every single rank: summed
over the group they are what crosses all the links of a ring.
Source: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

import torch
import torch.distributed as dist

from course_lib.runtime.tensors import tensors_in
from course_lib.runtime.torch_private import OpOverload, group_of_name

NAMESPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor")


@dataclass(frozen=True)
class CommunicationEvent:
    """One operation as one rank called it. Ranks are global.

    `peer` is the other end of a send or recv (None for a collective, and for a recv from any rank). The byte
    counts are None for an operation without a rule: an operator unknown to this file, or a sparse tensor.
    """

    rank: int
    op: str
    message_bytes: int | None
    sent_bytes: int | Fraction | None
    dtype: torch.dtype | None
    group: tuple[int, ...]
    peer: int | None = None


@dataclass(frozen=True)
class Transfer:
    """The letters of the formulas; `kept` is what an all_to_all leaves on its own rank, in bytes."""

    M: int
    n: int
    r: int
    root: int = 0
    kept: int = 0


SENT_BYTES: dict[str, Callable[[Transfer], int | Fraction]] = {
    "all_reduce": lambda t: Fraction(2 * (t.n - 1) * t.M, t.n),  # a reduce_scatter, then an all_gather
    "reduce_scatter": lambda t: Fraction((t.n - 1) * t.M, t.n),  # every block but one passes each rank
    "all_gather": lambda t: Fraction((t.n - 1) * t.M, t.n),
    "all_to_all": lambda t: t.M - t.kept,  # even blocks: (n-1)/n M
    "broadcast": lambda t: 0 if (t.r + 1) % t.n == t.root else t.M,  # all but the last of the ring pass it on
    "reduce": lambda t: 0 if t.r == t.root else t.M,  # each adds its part and passes it on towards the root
    "gather": lambda t: 0 if t.r == t.root else Fraction(t.M, t.n),  # every block goes straight to the root
    "scatter": lambda t: Fraction((t.n - 1) * t.M, t.n) if t.r == t.root else 0,
    "send": lambda t: t.M,
    "recv": lambda t: 0,
    "barrier": lambda t: 0,
}

# Operator -> (op, position of the argument that is the message). Without the suffixes _, _coalesced and _out.
OPERATORS: dict[str, tuple[str, int]] = {
    "allreduce": ("all_reduce", 0),
    "all_reduce": ("all_reduce", 0),
    "reduce_scatter": ("reduce_scatter", 1),
    "_reduce_scatter_base": ("reduce_scatter", 1),
    "c10d.reduce_scatter_tensor": ("reduce_scatter", 1),
    "reduce_scatter_tensor": ("reduce_scatter", 0),
    "allgather": ("all_gather", 0),
    "_allgather_base": ("all_gather", 0),
    "allgather_into_tensor": ("all_gather", 0),
    "all_gather_into_tensor": ("all_gather", 0),
    "alltoall": ("all_to_all", 1),
    "alltoall_base": ("all_to_all", 1),
    "all_to_all_single": ("all_to_all", 0),
    "shard_dim_alltoall": ("all_to_all", 0),
    "broadcast": ("broadcast", 0),
    "reduce": ("reduce", 0),
    "gather": ("gather", 1),
    "scatter": ("scatter", 0),
    "send": ("send", 0),
    "isend": ("send", 0),
    "recv": ("recv", 0),
    "recv_any_source": ("recv", 0),
    "irecv": ("recv", 0),
    "barrier": ("barrier", 0),
    "monitored_barrier": ("barrier", 0),
}
# Here torch hands over this rank's block of the message, M/n, and not the message.
GIVEN_ONE_BLOCK = {"all_gather_into_tensor", "gather", "scatter"}
# No communication of their own: they wait, wrap, check, or look a group up.
SILENT = {"wait_tensor", "_wrap_tensor_autograd", "check_for_nan", "mesh_get_process_group"}


def describe(rank: int, operator: OpOverload, args: Sequence[Any]) -> CommunicationEvent | None:
    """The event of one call of a c10d operator with positional `args`; None where nothing is communicated."""
    namespace, _, name = operator._schema.name.partition("::")
    key = name.removesuffix("_").removesuffix("_out").removesuffix("_coalesced")
    if key in SILENT:
        return None
    op, position = OPERATORS.get(f"{namespace}.{key}") or OPERATORS.get(key) or (f"{namespace}.{name}", 0)
    named = dict(zip(argument_names(operator), args))
    group = process_group(named)
    group_ranks = tuple(dist.get_process_group_ranks(group))
    tensors = tensors_in(args[position] if op in SENT_BYTES else args)
    dtype = tensors[0].dtype if tensors and op != "barrier" else None
    other_end = named.get({"send": "dst", "recv": "src"}.get(op))
    peer = None if other_end is None else group_ranks[other_end]
    if op not in SENT_BYTES or any(tensor.layout is not torch.strided for tensor in tensors):
        return CommunicationEvent(rank, op, None, None, dtype, group_ranks, peer)

    n = group.size()
    M = 0 if op == "barrier" else sum(map(num_bytes, tensors)) * (n if key in GIVEN_ONE_BLOCK else 1)
    root = named.get("root_rank", named.get("src", 0))
    kept = kept_bytes(tensors, named, n, group.rank()) if op == "all_to_all" else 0
    sent = Fraction(SENT_BYTES[op](Transfer(M, n, group.rank(), root, kept)))
    return CommunicationEvent(rank, op, M, whole(sent), dtype, group_ranks, peer)


@cache
def argument_names(operator: OpOverload) -> tuple[str, ...]:
    """The names of an operator's arguments, in their order."""
    return tuple(argument.name for argument in operator._schema.arguments)


def process_group(named: dict[str, Any]) -> dist.ProcessGroup:
    """The process group among an operator's arguments: boxed in c10d, elsewhere a name or the group."""
    if "process_group" in named:
        return dist.ProcessGroup.unbox(named["process_group"])
    group = named["group_name"]
    return group_of_name(group) if isinstance(group, str) else group


def kept_bytes(tensors: list[torch.Tensor], named: dict[str, Any], n: int, r: int) -> int:
    """What an all_to_all with the input blocks `tensors` leaves on rank r of n itself."""
    if "input_tensors" in named:  # one tensor a destination
        return num_bytes(tensors[r])
    rows = named.get("input_split_sizes") or [1] * n  # no sizes given: n equal blocks
    return num_bytes(tensors[0]) * int(rows[r]) // max(int(sum(rows)), 1)


def num_bytes(tensor: torch.Tensor) -> int:
    """Bytes of the elements of `tensor`, wherever they are stored."""
    return tensor.numel() * tensor.element_size()


def whole(number: int | Fraction) -> int | Fraction:
    """`number` as an int when it is one."""
    return int(number) if number == int(number) else number
