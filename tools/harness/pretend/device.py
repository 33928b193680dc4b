"""Give this process the pretended device, called "gpu". It cannot be taken back: only ranks and child processes do it.

What torch says of itself with a GPU, it says here: `torch.accelerator` names the device, torch.distributed builds
groups for "nccl", "gloo" and "cpu:gloo,gpu:nccl", and `get_backend` answers with those names.
"""

import types
from datetime import timedelta
from typing import Any

import torch
import torch.cuda.nccl
import torch.distributed.distributed_c10d as c10d

from tools.harness.pretend.build import load
from tools.harness.pretend.modes import REFUSED_BY_GLOO, REFUSED_BY_NCCL, Mode

NAME = "gpu"


def install(mode: Mode, index: int) -> None:
    """The devices of `mode`, with gpu:`index` as the current one. A second call only changes the current one."""
    extension = load()
    if torch._C._get_privateuse1_backend_name() != NAME:
        extension.set_device_count(mode.num_gpus)
        torch.utils.rename_privateuse1_backend(NAME)
        torch._register_device_module(NAME, device_module(extension))
        torch.utils.generate_methods_for_privateuse1_backend()
        # module.to(device) keeps its parameters as they are known to others (tied ones, an optimiser's), as with CUDA.
        torch.__future__.set_swap_module_params_on_conversion(True)
        install_backends(extension)
    extension.set_device(index % mode.num_gpus)


def device_module(extension: types.ModuleType) -> types.ModuleType:
    """What torch.cuda is to CUDA, as far as torch and torch.accelerator ask for it."""
    module = types.ModuleType(f"torch.{NAME}")

    def manual_seed(seed: int, device: int = -1) -> None:
        extension.default_generator(device).manual_seed(seed)

    def manual_seed_all(seed: int) -> None:
        for index in range(extension.device_count()):
            manual_seed(seed, index)

    def index_of(device: Any) -> int:
        return torch.device(device).index or 0 if not isinstance(device, int) else device

    def state_of(device: Any = NAME) -> torch.Tensor:
        return extension.default_generator(index_of(device)).get_state()

    def set_state(state: torch.Tensor, device: Any = NAME) -> None:
        extension.default_generator(index_of(device)).set_state(state)

    functions = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "_is_compiled": lambda: True,
        "_is_in_bad_fork": lambda: False,
        "device_count": extension.device_count,
        "current_device": extension.current_device,
        "get_device_name": lambda device=None: "a pretended GPU",
        "device": lambda device: torch.accelerator.device_index(index_of(device)),
        "set_device": lambda device: extension.set_device(index_of(device)),
        "current_stream": lambda device=None: torch.accelerator.current_stream(device),
        "set_stream": torch.accelerator.set_stream,
        "stream": lambda stream: stream,  # a torch.Stream is its own context manager
        "Stream": lambda device=NAME, priority=0: torch.Stream(device=device, priority=priority),
        "Event": lambda enable_timing=False: torch.Event(NAME, enable_timing=enable_timing),
        "synchronize": lambda device=None: torch.accelerator.synchronize(),
        "manual_seed": manual_seed,
        "manual_seed_all": manual_seed_all,
        "get_rng_state": state_of,
        "set_rng_state": set_state,
        "max_memory_allocated": lambda device=None: extension.max_memory_allocated(index_of(device)),
        "reset_peak_memory_stats": lambda device=None: extension.reset_peak_memory_stats(index_of(device)),
        "get_amp_supported_dtype": lambda: [torch.float16, torch.bfloat16],
        "is_bf16_supported": lambda: True,
    }
    for name, function in functions.items():
        setattr(module, name, function)
    return module


def install_backends(extension: types.ModuleType) -> None:
    """torch.distributed's own names for backends, on pretended wires."""
    gloo, kinds, register = c10d.ProcessGroupGloo, c10d.ProcessGroup.BackendType, c10d.ProcessGroup._register_backend

    def register_backend(group: Any, device: torch.device, kind: Any, backend: Any) -> None:
        """gloo itself for the host's tensors, which torch's DDP asks for its threads; a wire around it for a GPU's."""
        if device.type == NAME and kind == kinds.GLOO:
            kind, backend = kinds.CUSTOM, extension.Wire(backend, "gloo", False, set(REFUSED_BY_GLOO))
        register(group, device, kind, backend)

    class Options:
        """What torch sets on ProcessGroupNCCL.Options; none of it matters here, the time limit aside."""

        def __init__(self, is_high_priority_stream: bool = False) -> None:
            self.is_high_priority_stream = is_high_priority_stream
            self._timeout = c10d.default_pg_timeout

    class PretendedNCCL(extension.Wire):
        """NCCL, which takes no tensors of the host."""

        def __init__(self, store: Any, rank: int, size: int, options: Options) -> None:
            super().__init__(gloo(store, rank, size, options._timeout), "nccl", True, set(REFUSED_BY_NCCL))

    PretendedNCCL.Options = Options
    c10d.ProcessGroupNCCL = PretendedNCCL
    c10d.ProcessGroup._register_backend = register_backend
    c10d._NCCL_AVAILABLE = True
    c10d.default_pg_nccl_timeout = timedelta(minutes=10)
    torch.cuda.nccl.version = lambda: (0, 0, 0)  # torch.distributed logs it with every error of a communication call
    c10d.Backend.default_device_backend_map[NAME] = "nccl"
    c10d.Backend.backend_capability |= {"gloo": ["cpu", NAME], "nccl": [NAME]}
