"""Which backend carries the ranks' communication: NCCL between GPUs, gloo between CPUs or over one shared GPU."""

import torch
import torch.distributed as dist

BACKENDS = ("auto", "nccl", "gloo", "gloo-cuda")


def choose(backend: str, ranks_here: int) -> str:
    """The backend for `ranks_here` ranks on this host; ValueError where the machine cannot do what was asked.

    GPUs are counted without initialising CUDA, which a process that is forked later must not have done.
    """
    if backend not in BACKENDS:
        raise ValueError(f"unknown backend {backend!r}: expected one of {', '.join(map(repr, BACKENDS))}")
    num_gpus = torch.cuda.device_count()
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
