"""What crosses between the notebook and a rank: the function with its arguments there, its result back.

In a rank tensors lie on the rank's device, wherever they come from; in the notebook on the CPU, wherever they were.
"""

import inspect
import io
import pickle
from collections.abc import Callable
from typing import Any

import cloudpickle
import torch
from torch import Tensor, nn

from course_lib.runtime import context
from course_lib.runtime.ranks import showing


def pack_call(fn: Callable, args: tuple, kwargs: dict) -> bytes:
    """The pickle of (fn, args, kwargs). ValueError, with the names to blame, for what cannot be sent."""
    try:
        return cloudpickle.dumps((fn, args, kwargs))
    except Exception as error:
        culprits = [*_unpicklable({f"argument {n}": value for n, value in enumerate(args)} | kwargs),
                    *_unpicklable(_names_used_by(fn))]
        raise ValueError(f"{getattr(fn, '__name__', fn)!s} cannot be sent to the ranks: "
                         f"{', '.join(culprits) or 'it'} cannot be pickled ({error}). "
                         "Make such an object inside the function instead") from None


def _names_used_by(fn: Callable) -> dict[str, Any]:
    used = inspect.getclosurevars(fn) if inspect.isfunction(fn) else None
    return {**used.globals, **used.nonlocals} if used else {}


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


def _load_onto_own_device(numbers: bytes) -> Any:
    own = context.device()
    # The sender is the notebook that this rank belongs to. A meta tensor has no numbers to put anywhere.
    return torch.load(io.BytesIO(numbers), weights_only=False,
                      map_location=lambda storage, location: storage if location == "meta" else storage.to(device=own))


def pack_result(result: Any) -> bytes:
    """The pickle of what a rank returns. TypeError for what cannot leave it."""
    buffer = io.BytesIO()
    _ResultPickler(buffer).dump(result)
    return buffer.getvalue()


class _ResultPickler(cloudpickle.Pickler):
    """Results leave the rank as plain CPU tensors: finished ones, that need neither the group nor a GPU to be read."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            if hasattr(value, "trigger_wait"):  # AsyncCollectiveTensor: its numbers are garbage until waited for
                return _as_is, (value.trigger_wait(),)
            if hasattr(value, "full_tensor"):
                raise TypeError("a DTensor lives on its mesh: return tensor.full_tensor() or tensor.to_local()")
            if value.device.type not in ("cpu", "meta"):
                on_host = value.detach().cpu()
                if type(value) is nn.Parameter:
                    return nn.Parameter, (on_host, value.requires_grad)
                return _as_is, (on_host,)
        return super().reducer_override(value)


def _as_is(value: Any) -> Any:
    return value
