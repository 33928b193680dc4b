"""torch.distributed's operations: a row each, from which all of the course that names one reads it.

An operation goes by many names on its way down. `dist.all_gather_into_tensor(out, x)` asks a ProcessGroup for
`_allgather_base`, and that torch's dispatcher for `c10d::_allgather_base_`, as do FSDP2 and, in C++, DDP's reducer and
the functional collectives under DTensor. A row has all of them:

    name        the field's own: record_communication's events, and what an exercise allows (all_gather)
    functions   of torch.distributed, by which a reader reaches it: what the class's grader refuses
    forms       one for each way down: methods of ProcessGroup, which instruments/pending.py wraps, under the function
                that timelines and deadlocks name; c10d's operators, at which instruments/arrivals.py listens and
                which staging.py replaces on a shared GPU
    sent_bytes  what one rank sends, of

        M  message: the largest buffer the operation handles, in bytes (the full output of all_gather and gather,
           the full input of reduce_scatter, scatter and all_to_all)
        n  ranks in the group
        r  this rank in the group; root: the root in the group

Bytes sent are counted as a ring would send them, as NCCL's bus bandwidth is, but exactly for every single rank: summed
over the group they are what crosses all the links of a ring. What a backend really sends is wire.py's to say.
Source: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md

Whether a call returns at once is no matter of the operation but of the backend: backends.returns_at_once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Transfer:
    """The letters of the formulas; `kept` is what an all_to_all leaves on its own rank, in bytes."""

    M: int
    n: int
    r: int
    root: int = 0
    kept: int = 0


@dataclass(frozen=True)
class Message:
    """Which argument of an operator is the message. `one_block`: torch hands over this rank's M/n of it alone."""

    argument: int = 0
    one_block: bool = False


@dataclass(frozen=True)
class Form:
    """A way down: methods of ProcessGroup and operators of c10d, and the function that stands for it in words.

    from_gpu: whether gloo itself takes tensors of a GPU there (the table in
    https://docs.pytorch.org/docs/stable/distributed.html), or the call has none; all else is staged.
    """

    function: str
    methods: tuple[str, ...]
    operators: tuple[str, ...]
    from_gpu: bool = False


@dataclass(frozen=True)
class Operation:
    """A row; the docstring of the file says what its columns are."""

    name: str
    functions: tuple[str, ...]
    sent_bytes: Callable[[Transfer], int | Fraction]
    forms: tuple[Form, ...]
    message: Message | None = Message()  # None: it carries nothing
    peer: str | None = None  # of send and recv: the operators' argument that names the other end
    contiguous: bool = False  # gloo takes no other tensors
    has_result: bool = True  # on every rank: the future of a call without one holds no tensor, and knows of no stream


ROWS = (
    Operation(
        "all_reduce", ("all_reduce", "all_reduce_coalesced"),
        lambda t: Fraction(2 * (t.n - 1) * t.M, t.n),  # a reduce_scatter, then an all_gather
        (Form("all_reduce", ("allreduce",), ("allreduce_",), from_gpu=True),
         Form("all_reduce_coalesced", ("allreduce_coalesced",), ("allreduce_coalesced_",)))),
    Operation(
        "reduce_scatter", ("reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_single", "_reduce_scatter_base"),
        lambda t: Fraction((t.n - 1) * t.M, t.n),  # every block but one passes each rank
        (Form("reduce_scatter", ("reduce_scatter",), ("reduce_scatter_",)),
         Form("reduce_scatter_tensor", ("_reduce_scatter_base", "reduce_scatter_single"), ("_reduce_scatter_base_",)),
         Form("reduce_scatter_tensor", ("reduce_scatter_tensor_coalesced", "reduce_scatter_single_coalesced"),
              ("reduce_scatter_tensor_coalesced_",))),
        message=Message(1)),
    Operation(
        "all_gather", ("all_gather", "all_gather_into_tensor", "all_gather_single", "all_gather_coalesced",
                       "all_gather_object", "_all_gather_base"),
        lambda t: Fraction((t.n - 1) * t.M, t.n),
        (Form("all_gather", ("allgather", "allgather_coalesced"), ("allgather_", "allgather_coalesced_")),
         Form("all_gather_into_tensor", ("_allgather_base", "all_gather_single"), ("_allgather_base_",)),
         Form("all_gather_into_tensor", ("allgather_into_tensor_coalesced", "all_gather_single_coalesced"),
              ("allgather_into_tensor_coalesced_",)))),
    Operation(
        "all_to_all", ("all_to_all", "all_to_all_single"),
        lambda t: t.M - t.kept,  # even blocks: (n-1)/n M
        (Form("all_to_all", ("alltoall",), ("alltoall_",)),
         Form("all_to_all_single", ("alltoall_base", "all_to_all_single"), ("alltoall_base_",))),
        message=Message(1), contiguous=True),
    Operation(
        "broadcast", ("broadcast", "broadcast_object_list"),
        lambda t: 0 if (t.r + 1) % t.n == t.root else t.M,  # all but the last of the ring pass it on
        (Form("broadcast", ("broadcast",), ("broadcast_",), from_gpu=True),)),
    Operation(
        "reduce", ("reduce",),
        lambda t: 0 if t.r == t.root else t.M,  # each adds its part and passes it on towards the root
        (Form("reduce", ("reduce",), ("reduce_",)),)),
    Operation(
        "gather", ("gather", "gather_object"),
        lambda t: 0 if t.r == t.root else Fraction(t.M, t.n),  # every block goes straight to the root
        (Form("gather", ("gather",), ("gather_",)),), message=Message(1, one_block=True), has_result=False),
    Operation(
        "scatter", ("scatter", "scatter_object_list"),
        lambda t: Fraction((t.n - 1) * t.M, t.n) if t.r == t.root else 0,
        (Form("scatter", ("scatter",), ("scatter_",)),), message=Message(one_block=True)),
    Operation(
        "send", ("send", "isend", "send_object_list"), lambda t: t.M,
        (Form("send", ("send",), ("send",)),), peer="dst", contiguous=True),
    Operation(
        "recv", ("recv", "irecv", "recv_object_list"), lambda t: 0,
        (Form("recv", ("recv", "recv_anysource"), ("recv_", "recv_any_source_")),), peer="src", contiguous=True),
    Operation(
        "barrier", ("barrier", "monitored_barrier"), lambda t: 0,
        (Form("barrier", ("barrier",), ("barrier",), from_gpu=True),
         Form("monitored_barrier", ("monitored_barrier",), ("monitored_barrier_",), from_gpu=True)),
        message=None, has_result=False),
)
OPERATIONS: dict[str, Operation] = {row.name: row for row in ROWS}
POINT_TO_POINT = ("send", "recv")  # all others are collectives
NEW_IN = {"all_gather_single": "2.13", "reduce_scatter_single": "2.13"}  # functions that an older torch does not have


def find_operation(operator: str) -> Operation | None:
    """The row of one of c10d's operators, `c10d::allgather_` for example; None where there is none."""
    name = operator.removeprefix("c10d::")
    return next((row for row in OPERATIONS.values() if any(name in form.operators for form in row.forms)), None)


def name_of_function(function: str) -> str:
    """The operation that a function of torch.distributed is: "all_gather" for all_gather_into_tensor."""
    return next((row.name for row in OPERATIONS.values() if function in row.functions), function)


def list_methods() -> dict[str, str]:
    """ProcessGroup's methods, each with the function that stands for it in words."""
    return {method: form.function for row in OPERATIONS.values() for form in row.forms for method in form.methods}


def list_staged_operators() -> dict[str, tuple[str, Operation]]:
    """c10d's operators that gloo does not carry from a GPU, each with its function and its row."""
    return {operator: (form.function, row) for row in OPERATIONS.values() for form in row.forms
            for operator in form.operators if not form.from_gpu}


def list_collectives() -> dict[str, tuple[str, ...]]:
    """Each collective with the functions of torch.distributed that are it."""
    return {row.name: row.functions for row in OPERATIONS.values() if row.name not in POINT_TO_POINT}


def name_of_method(method: str) -> str | None:
    """The operation that a method of ProcessGroup is; None for one that communicates nothing.

    By its row, or by what it begins with: a newer torch may have others, with anything behind the name.
    """
    for row in OPERATIONS.values():
        if any(method in form.methods for form in row.forms):
            return row.name
    said = method.replace("_", "")
    begin = [name for name in OPERATIONS if not method.startswith("__") and said.startswith(name.replace("_", ""))]
    return max(begin, key=len, default=None)  # reduce_scatter is no form of reduce
