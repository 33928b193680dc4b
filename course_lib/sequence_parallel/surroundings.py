"""What a function's results depend on besides its arguments: random numbers, autocast, the default device.

Whoever runs a function again takes them from the first time, or dropout draws another mask.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor

from course_lib.runtime import device
from course_lib.runtime.torch_private import DeviceContext, function_modes

CPU = torch.device("cpu")


class Surroundings:
    """As they are now, for the CPU, the devices of `tensors`, and the rank's own. `restore()` brings them back."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        devices = {tensor.device for tensor in tensors} | {device(), CPU}
        self.devices = [each for each in devices if each.type != "meta"]  # which draws nothing
        self.random = self._random()
        self.autocast = [(kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind),
                          torch.is_autocast_cache_enabled())
                         for kind in {each.type for each in self.devices} if torch.amp.is_autocast_available(kind)]
        self.default_device = default_device()

    @contextmanager
    def restore(self) -> Iterator[None]:
        """Until the block ends; then random numbers go on from where they were before it."""
        before = self._random()
        try:
            self._set_random(self.random)
            with ExitStack() as stack:
                for kind, enabled, dtype, cached in self.autocast:
                    if enabled or torch.is_autocast_enabled(kind):
                        stack.enter_context(torch.autocast(kind, dtype, enabled, cached))
                # Autograd's threads of a GPU have no default device, and one must not be entered twice.
                if self.default_device is not None and default_device() is not self.default_device:
                    stack.enter_context(self.default_device)
                yield
        finally:
            self._set_random(before)  # whoever draws next must not notice that something ran twice

    def _random(self) -> list[Tensor]:
        return [torch.get_rng_state() if each == CPU else torch.get_device_module(each).get_rng_state(each)
                for each in self.devices]

    def _set_random(self, states: Sequence[Tensor]) -> None:
        for each, state in zip(self.devices, states):
            if each == CPU:
                torch.set_rng_state(state)
            else:
                torch.get_device_module(each).set_rng_state(state, each)


def default_device() -> DeviceContext | None:
    """torch's default device of this thread, as the mode that it is; None where nobody has set one."""
    modes = reversed(function_modes())
    return next((mode for mode in modes if isinstance(mode, DeviceContext)), None)
