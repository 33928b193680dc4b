"""Which backend carries the ranks' communication: NCCL between GPUs, gloo between CPUs or over one shared GPU.

Nothing else in the course knows kinds of GPU or compares names of backends. To somebody who asks where a message has to
lie, `wire` answers with a device.
"""

import torch
import torch.distributed as dist

BACKENDS = ("auto", "nccl", "gloo", "gloo-cuda")
DEVICES = ("auto", "cpu")
NO_GPUS = {"CUDA_VISIBLE_DEVICES": ""}  # environment of ranks that compute on the CPU: libraries then agree with us


def gpu_kind() -> str | None:
    """The torch.device.type of GPUs that NCCL connects, as far as this build of torch goes: "cuda", or None."""
    accelerator = torch.accelerator.current_accelerator()
    served = accelerator is not None and dist.Backend.default_device_backend_map.get(accelerator.type) == "nccl"
    return accelerator.type if served else None


def count_gpus() -> int:
    """GPUs of this host, counted without initialising their driver: a process that has done so cannot be forked."""
    kind = gpu_kind()
    return torch.get_device_module(kind).device_count() if kind else 0


def choose(backend: str, device: str, ranks_here: int) -> str:
    """The backend for `ranks_here` ranks on this host; ValueError where the machine cannot do what was asked."""
    if backend not in BACKENDS:
        raise ValueError(f"unknown backend {backend!r}: expected one of {', '.join(map(repr, BACKENDS))}")
    if device not in DEVICES:
        raise ValueError(f"unknown device {device!r}: expected one of {', '.join(map(repr, DEVICES))}")
    if device == "cpu":
        if backend in ("nccl", "gloo-cuda"):
            raise ValueError(f"backend={backend!r} is for GPUs, and device='cpu' keeps to the CPU: expected one or the "
                             "other")
        return "gloo"
    num_gpus = count_gpus()
    if backend == "auto":
        return "nccl" if num_gpus >= ranks_here and dist.is_nccl_available() else "gloo"
    if backend == "nccl":
        if not dist.is_nccl_available():
            raise ValueError("backend='nccl' needs a torch built with CUDA; this one is not. Use backend='gloo'")
        if num_gpus < ranks_here:
            raise ValueError(f"backend='nccl' needs one GPU per rank: {ranks_here} ranks were asked for and this "
                             f"machine has {num_gpus}. Use world_size={max(num_gpus, 1)}, or backend='gloo'")
    if backend == "gloo-cuda" and num_gpus == 0:
        raise ValueError("backend='gloo-cuda' shares one GPU between the ranks, and this machine has none. "
                         "Use backend='gloo'")
    return backend


def hide_gpus(backend: str) -> dict[str, str]:
    """Environment variables that a rank needs for `backend`: under gloo it sees no GPU."""
    return NO_GPUS if backend == "gloo" else {}


def wire(group: dist.ProcessGroup, device: torch.device) -> torch.device:
    """Where a message of `group` about a tensor on `device` has to lie.

    The same device where the group has a backend for it. gloo sends from the host's memory, and NCCL from a GPU's.
    """
    carriers = dict(pair.split(":") for pair in dist.get_backend_config(group).split(","))
    if carriers.get(device.type) == ("gloo" if device.type == "cpu" else "nccl"):
        return device
    on_gpu = next((kind for kind, name in carriers.items() if name == "nccl"), None)
    return torch.device(on_gpu, torch.accelerator.current_device_index()) if on_gpu else torch.device("cpu")


def returns_at_once(group: dist.ProcessGroup, device: torch.device) -> bool:
    """Whether `group`, given a tensor on `device`, returns to the host at once, and the GPU's streams wait: NCCL's way.
    """
    return device.type != "cpu" and group._get_backend(device).name() == "nccl"
