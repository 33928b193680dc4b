"""Pickling of what crosses between the notebook and a rank: the function with its arguments, and its result.

In a rank tensors lie on the rank's device, wherever they come from; in the notebook on the CPU, wherever they were.
"""

import functools
import importlib
import inspect
import io
import pickle
import sys
from collections.abc import Callable
from types import CodeType, ModuleType
from typing import Any

import cloudpickle
import torch
from torch import Tensor
from torch.storage import TypedStorage

from course_lib.runtime import context
from course_lib.runtime.ranks import showing


def pack_call(fn: Callable, args: tuple, kwargs: dict) -> bytes:
    """The pickle of (fn, args, kwargs). ValueError, with the names to blame, for what cannot be sent."""
    try:
        return _pickle_with(CallPickler, (fn, args, kwargs))
    except Exception as error:
        used = inspect.getclosurevars(fn) if inspect.isfunction(fn) else None
        names = {**used.globals, **used.nonlocals} if used else {}
        culprits = [*_unpicklable({f"argument {n}": value for n, value in enumerate(args)} | kwargs),
                    *_unpicklable(names)]
        raise ValueError(f"{getattr(fn, '__name__', fn)!s} cannot be sent to the ranks: "
                         f"{', '.join(culprits) or 'it'} cannot be pickled ({error}). "
                         "Make such an object inside the function instead") from None


def _pickle_with(pickler: type[cloudpickle.Pickler], value: Any) -> bytes:
    buffer = io.BytesIO()
    pickler(buffer).dump(value)
    return buffer.getvalue()


class _Pickler(cloudpickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        """Code keeps the name of its file, which cloudpickle 3.1.3 leaves out: reports show the reader's line."""
        if isinstance(value, CodeType):
            return _code, (value.co_filename, *self.dispatch_table[CodeType](value))
        return super().reducer_override(value)


def _code(filename: str, make: Callable[..., CodeType], arguments: tuple) -> CodeType:
    return make(*arguments).replace(co_filename=filename)


class CallPickler(_Pickler):
    def reducer_override(self, value: Any) -> Any:
        """A generator's state is a tensor to torch's own pickle. It belongs to the generator, and stays on the CPU.

        A module of a class of its own, such as torch.backends.mkldnn, goes by its name, as all others do. A function of
        the notebook under functools.cache arrives with its cache empty.
        """
        if isinstance(value, ModuleType) and type(value) is not ModuleType and sys.modules.get(value.__name__) is value:
            return importlib.import_module, (value.__name__,)
        if isinstance(value, torch.Generator) and value.device.type == "cpu":
            # As bytes, so that it does not go the way of tensors, which ends on the rank's device.
            return _generator, (value.get_state().numpy().tobytes(),)
        if isinstance(value, functools._lru_cache_wrapper) and value.__module__ == "__main__":
            return _cached, (value.__wrapped__, value.cache_parameters())
        return super().reducer_override(value)


def _cached(function: Callable, parameters: dict[str, Any]) -> Callable:
    return functools.lru_cache(**parameters)(function)


def _generator(state: bytes) -> torch.Generator:
    made = torch.Generator("cpu")
    made.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
    return made


def _unpicklable(values: dict[str, Any]) -> list[str]:
    bad = []
    for name, value in values.items():
        try:
            cloudpickle.dumps(value)
        except Exception:
            bad.append(f"{name} (a {type(value).__name__})")
    return bad


def unpack_call(call: bytes) -> Any:
    """The (fn, args, kwargs) of a launch, their tensors (also those in closures) on this rank's device."""
    return _Unpacker(io.BytesIO(call)).load()


class _Unpacker(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        # A tensor's numbers arrive by one function of torch, which would put them where they were.
        if (module, name) == ("torch.storage", "_load_from_bytes"):
            return _load_onto_own_device
        if (module, name) == ("IPython.core.display_functions", "display"):  # the cell has imported it by name
            return showing.display
        return super().find_class(module, name)


def _load_onto_own_device(numbers: bytes) -> TypedStorage:
    # Read as the CPU's: the notebook's GPU, where they may have lain, is perhaps none of this rank's.
    storage = torch.load(io.BytesIO(numbers), map_location="cpu", weights_only=False)
    return _copy_to(storage, context.device())


def _copy_to(storage: TypedStorage, device: torch.device) -> TypedStorage:
    """A copy on `device`. (TypedStorage's own methods that copy warn that it will go; tensors are pickled as such.)"""
    own = storage._untyped_storage
    if own.device == device:
        return storage
    number_bytes = torch.empty(0, dtype=torch.uint8, device=own.device).set_(own, 0, (own.nbytes(),), (1,))
    return TypedStorage(wrap_storage=number_bytes.to(device).untyped_storage(), dtype=storage.dtype, _internal=True)


def pack_result(result: Any) -> bytes:
    """The pickle of what a rank returns. TypeError for what cannot leave it."""
    return _pickle_with(_ResultPickler, result)


class _ResultPickler(_Pickler):
    """Results leave the rank as plain CPU tensors: finished ones, that need neither the group nor a GPU to be read."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            if hasattr(value, "trigger_wait"):  # AsyncCollectiveTensor: its numbers are garbage until waited for
                return _as_is, (value.trigger_wait(),)
            if hasattr(value, "full_tensor"):
                raise TypeError("a DTensor lives on its mesh: return tensor.full_tensor() or tensor.to_local()")
        if isinstance(value, TypedStorage) and value._untyped_storage.device.type not in ("cpu", "meta"):
            # A tensor's numbers. What else it is (a parameter, a view) travels as it would from the CPU.
            return _copy_to(value, torch.device("cpu")).__reduce__()
        return super().reducer_override(value)


def _as_is(value: Any) -> Any:
    return value
