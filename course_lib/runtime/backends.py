"""Which backend carries the ranks' communication, NCCL between GPUs or gloo between CPUs or over one shared GPU; and
joining the default process group over it, the same way in ranks of `launch` and under torchrun.

Nothing else in the course knows kinds of GPU or compares names of backends. To somebody who asks where a message has to
lie, `wire` answers with a device. What a cell makes without naming a device lies on the rank's own device: torch's
default device, without its traps.

    torch.randperm(8, generator=torch.Generator())    the numbers of that generator, on the CPU, and then brought over

torch itself would draw on the default device and refuse: a generator of the CPU draws nothing on a GPU. DataLoader's
and DistributedSampler's own shuffles are such calls, and so is whatever a reader wants to be the same on every machine.

And a process that a rank forks, as DataLoader its workers, has no default device: a GPU's driver does not survive a
fork, and the first number that a worker put into a tensor would end it.

An optimiser counts its steps in a tensor that it may make without naming a device (AdamW before torch 2.13, Adagrad
still), and reads it on the host, twice a step for each parameter. On the default device every such read would wait for
the GPU: after a step it lies on the host, as without a default device. (On an H100: 104 waits in a step of 52
parameters.)
"""

import os
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook

from course_lib.runtime import context, staging
from course_lib.runtime.context import RankContext
from course_lib.runtime.torch_private import DeviceContext, flash_attention, grouped_mm, has_kernel, set_default_timeout

BACKENDS = ("auto", "nccl", "gloo", "gloo-cuda")
DEVICES = ("auto", "cpu")
NO_GPUS = {"CUDA_VISIBLE_DEVICES": ""}  # environment of ranks that compute on the CPU: libraries then agree with us
DRAWN = {torch.rand, torch.randn, torch.randint, torch.randperm}  # with a generator, on its own device


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
    for what, given, known in (("backend", backend, BACKENDS), ("device", device, DEVICES)):
        if given not in known:
            raise ValueError(f"unknown {what} {given!r}: expected one of {', '.join(map(repr, known))}")
    if device == "cpu" and backend in ("nccl", "gloo-cuda"):
        raise ValueError(f"backend={backend!r} is for GPUs, and device='cpu' keeps to the CPU: expected one or the "
                         "other")
    if device == "cpu":
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


def has_flash_attention(device: torch.device) -> bool:
    """Whether `device` is a GPU with FlashAttention for 16 bits."""
    return has_kernel(flash_attention.default, device)


def attention_kernel(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> str:
    """The fused attention for these (B, H, T, d): "flash" or "efficient" on a GPU, or else the "host"'s."""
    if not has_flash_attention(q.device):
        return "host"
    asked = torch.backends.cuda.SDPAParams(q, k, v, None, 0.0, causal, False)
    if torch.backends.cuda.can_use_flash_attention(asked):
        return "flash"
    return "efficient" if torch.backends.cuda.can_use_efficient_attention(asked) else "host"


def has_grouped_mm(x: torch.Tensor) -> bool:
    """Whether one kernel of a GPU computes products like `x` (M, D) by several matrices, each on some of the rows."""
    return x.device.type != "cpu" and x.dtype == torch.bfloat16 and has_kernel(grouped_mm.default, x.device)


class _Own(DeviceContext):
    """torch's own context, which every call that makes a tensor goes through, and torch.get_default_device() finds."""

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.unflatten:
            # The method is Python and asks `super()`, where torch.compile would break its graph under any mode.
            func = torch.unflatten
        generator = kwargs.get("generator")
        if func not in DRAWN or generator is None or any(kwargs.get(name) is not None for name in ("device", "out")):
            return super().__torch_function__(func, types, args, kwargs)
        drawn = func(*args, **{**kwargs, "device": generator.device})
        return drawn.detach().to(self.device).requires_grad_(drawn.requires_grad)


def count_steps_on_host(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """After a step: its counts as torch has them without a default device. Fused and capturable ones stay."""
    for group in optimizer.param_groups:
        if not (group.get("capturable") or group.get("fused")):
            for parameter in group["params"]:
                state = optimizer.state.get(parameter, {})
                if isinstance(count := state.get("step"), torch.Tensor) and count.device.type != "cpu":
                    state["step"] = count.cpu()


_own: _Own | None = None
_counting: Any = None  # the hook's handle


def set_default_device(device: torch.device) -> None:
    """From now on, in the calling thread: what is made without naming a device lies on `device`."""
    global _own, _counting
    unset_default_device()
    _own = _Own(device)
    _own.__enter__()
    _counting = register_optimizer_step_post_hook(count_steps_on_host)


def unset_default_device() -> None:
    """From now on tensors are made on the CPU again."""
    global _own, _counting
    if _own is not None:
        _own.__exit__(None, None, None)
        _counting.remove()
        _own = _counting = None


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=unset_default_device)


def join(me: RankContext, timeout: timedelta, **rendezvous: Any) -> None:
    """Become this rank: its device is the default one, its group is initialised.

    timeout: how long a call waits for other ranks, in the world's group and in all that are made later, by whatever
    function: torch would give those its own ten or thirty minutes.

    With NCCL the group has gloo for tensors in the host's memory. It is given the rank's GPU, so that its communicator
    is made now and not in the middle of the first collective. `rendezvous` goes to init_process_group.
    """
    context.current = me
    device = context.device()
    if device.type != "cpu":
        torch.accelerator.set_device_index(device.index)
        # A cell that makes tensors then runs on GPUs as it stands. On the CPU nothing is set: 1 us an operator.
        set_default_device(device)
        # Autograd's own threads begin without a context, and cuBLAS takes the right one and says so.
        warnings.filterwarnings("ignore", "Attempting to run cuBLAS, but there was no current CUDA context")
    staging.complete_gloo()
    if me.backend == "gloo-cuda":
        staging.install()
    over_nccl = me.backend == "nccl"
    set_default_timeout(timeout)
    dist.init_process_group(f"cpu:gloo,{device.type}:nccl" if over_nccl else "gloo",
                            timeout=timeout, device_id=device if over_nccl else None, **rendezvous)


def leave() -> None:
    """Undo `join`, for a process that lives on."""
    if dist.is_initialized():
        dist.destroy_process_group()
    staging.uninstall()
    unset_default_device()
    context.current = None


def group_timeout(timeout_s: float) -> timedelta:
    """Of groups in ranks of launch: later than launch's own time limit, whose message says more than the backend's.

    A day at least: at a breakpoint one rank waits for the reader, and the others for that rank.
    """
    return timedelta(seconds=min(2 * timeout_s + 24 * 3600, 7 * 24 * 3600))
