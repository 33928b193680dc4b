"""Every call on a process group, at the place where all of them arrive: in any thread, through any API, never twice.

`dist.all_reduce`, the C++ reducer of torch's DDP, FSDP2, pipelining, the functional collectives under DTensor and what
torch.compile has made of them all end in one operator of torch's dispatcher: `c10d::allreduce_`. While somebody
listens, each of these operators has a kernel of ours in front, under a dispatch key that every thread has
(BackendSelect). What is asked of a backend's own object does not pass the dispatcher; its methods are wrapped.

A call that arrives inside another one, such as the host's copy that staging.py lets gloo carry, is a part of it. While
nobody listens nothing is installed, and nothing costs.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
import torch.distributed as dist

from course_lib.runtime.operations import Operation, find_operation
from course_lib.runtime.torch_private import (
    BACKEND_SELECT,
    Backend,
    OpOverload,
    after_backend_select,
    list_groups,
    list_operators,
    remove_library,
    replace_attribute,
    wait_tensor,
)


@dataclass(frozen=True)
class Arrival:
    """One call: its operator of c10d, the row of the operation (None for an operator that operations.py does not know),
    and its arguments, by the names that the operator has for them.
    """

    operator: str
    row: Operation | None
    group: dist.ProcessGroup
    arguments: dict[str, Any]


Run = Callable[[], Any]
Handler = Callable[[Arrival, Run], Any]  # runs the call, and returns what it returns
WaitHandler = Callable[[torch.Tensor, Run], Any]
handlers: list[Handler] = []
wait_handlers: list[WaitHandler] = []
_thread = threading.local()
_installed = ExitStack()  # what is in place while anybody listens


@contextmanager
def handle_arrivals(handler: Handler, wait_handler: WaitHandler | None = None) -> Iterator[None]:
    """Until the block ends, `handler` is around each call of this process, and `wait_handler` around each wait for what
    a functional collective fills. The latest one is the outermost.
    """
    if not handlers:
        _install()
    handlers.append(handler)
    wait_handlers.extend(filter(None, [wait_handler]))
    try:
        yield
    finally:
        handlers.remove(handler)
        if wait_handler is not None:
            wait_handlers.remove(wait_handler)
        if not handlers:
            _installed.close()


def _install() -> None:
    libraries = library, functional = [torch.library.Library(name, "IMPL") for name in ("c10d", "_c10d_functional")]
    for each in libraries:
        _installed.callback(remove_library, each)
    functional.impl("wait_tensor", _wait_for, BACKEND_SELECT, with_keyset=True)
    for name, kernel in make_kernels().items():
        library.impl(name, kernel, BACKEND_SELECT, with_keyset=True)
    for method, operator in methods_of_backends().items():
        ours = _make_method(getattr(Backend, method), operator)
        _installed.enter_context(replace_attribute(Backend, method, ours))


@cache
def make_kernels() -> dict[str, Callable]:
    """By operator of c10d: what runs in front of it."""
    return {operator._schema.name: _make_kernel(operator) for operator in list_operators("c10d")
            if "process_group" in names_of(operator)}


def _make_kernel(operator: OpOverload) -> Callable:
    def kernel(keyset: Any, *args: Any) -> Any:
        run = partial(operator.redispatch, after_backend_select(keyset), *args)
        if getattr(_thread, "inside", False):
            return run()
        named = dict(zip(names_of(operator), args))
        group = dist.ProcessGroup.unbox(named.pop("process_group"))
        return _arrive(Arrival(operator._schema.name, row_of(operator), group, named), run)

    return kernel


def _wait_for(keyset: Any, tensor: torch.Tensor) -> torch.Tensor:
    run = partial(wait_tensor().redispatch, after_backend_select(keyset), tensor)
    for handler in tuple(wait_handlers) if type(tensor) is torch.Tensor else ():  # a compiler's has no memory
        run = partial(handler, tensor, run)
    return run()


def _make_method(method: Callable, operator: OpOverload) -> Callable:
    """In the place of a Backend's own method: its arguments are the operator's without the group, and then options."""
    def ask_backend(backend: Any, *args: Any, **options: Any) -> Any:
        run = partial(method, backend, *args, **options)
        group = None if getattr(_thread, "inside", False) else group_of(backend)
        if group is None:
            return run()
        names = [name for name in names_of(operator) if name != "process_group"]
        named = dict(zip(names, args)) | options
        for given in (*args, *options.values()):
            if hasattr(given, "rootRank"):
                named["root_rank"] = given.rootRank
        return _arrive(Arrival(operator._schema.name, row_of(operator), group, named), run)

    return ask_backend


def _arrive(arrival: Arrival, run: Run) -> Any:
    for handler in tuple(handlers):
        run = partial(handler, arrival, run)
    _thread.inside = True
    try:
        return run()
    finally:
        _thread.inside = False


@cache
def names_of(operator: OpOverload) -> tuple[str, ...]:
    return tuple(argument.name for argument in operator._schema.arguments)


@cache
def row_of(operator: OpOverload) -> Operation | None:
    return find_operation(operator._schema.name)


@cache
def methods_of_backends() -> dict[str, OpOverload]:
    """Methods of a Backend that communicate, each with the operator that ends in it."""
    known = {operator._schema.name.partition("::")[2].rstrip("_"): operator for operator in list_operators("c10d")}
    return {method: known[name] for method in vars(Backend)
            if (name := {"recv_anysource": "recv_any_source"}.get(method, method)) in known}


def group_of(backend: Any) -> dist.ProcessGroup | None:
    """The process group that has `backend`; None for one that belongs to none."""
    for group in list_groups():
        if any(group._get_backend(device) is backend for device in group._device_types):
            return group
    return None
