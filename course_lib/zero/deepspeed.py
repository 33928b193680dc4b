"""DeepSpeed beside ours: the same module trained by the system that ZeRO came with. Needs `pip install .[deepspeed]`.

    engine = deepspeed_engine(GPT(config), stage=2, lr=1e-3)
    loss = engine(inputs, targets)[1]
    engine.backward(loss)               for loss.backward(): reduces as its stage says
    engine.step()                       for optimizer.step() and zero_grad()

What its configuration calls "zero_optimization" is what the constructors of this chapter take as arguments.
"""

import importlib
import importlib.util
import logging
import os
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.runtime import device
from course_lib.runtime.torch_private import replace_attribute, tree_leaves

MISSING = "DeepSpeed is not installed: expected `pip install .[deepspeed]` in the course's folder"


def deepspeed_config(stage: int, bucket_cap_mb: float = 25) -> dict[str, Any]:
    """The same work as ours: buckets of as many bytes (DeepSpeed counts numbers), and in stage 3 every parameter is
    sharded, where by default those below 100,000 numbers stay whole.
    """
    bucket = int(bucket_cap_mb * 2**20 / 4)
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 0.0,
        "zero_optimization": {
            "stage": stage,
            "overlap_comm": stage > 1,
            "reduce_bucket_size": bucket,
            "allgather_bucket_size": bucket,
            "stage3_prefetch_bucket_size": bucket,
            "stage3_param_persistence_threshold": 0,
        },
        "zero_allow_untested_optimizer": True,  # torch's own AdamW, and not the one it would compile
        "zero_force_ds_cpu_optimizer": False,
    }


def deepspeed_engine(module: nn.Module, stage: int, config: dict[str, Any] | None = None, **defaults: Any) -> Any:
    """A DeepSpeedEngine around `module`, with AdamW, on the ranks of the world, quiet enough for a notebook.

    `config` defaults to deepspeed_config(stage); `defaults` are AdamW's. ImportError where it is not installed.
    """
    deepspeed = import_quietly()
    comm = importlib.import_module("deepspeed.comm.torch")  # as an attribute of deepspeed.comm, torch is torch itself
    # On the CPU it would compile shared-memory collectives, for a minute, and say so on stdout; gloo does without them.
    with replace_attribute(comm, "build_shm_op", lambda: None):
        deepspeed.init_distributed(verbose=False)  # takes the process group that is there
    optimizer = torch.optim.AdamW([p for p in module.parameters() if p.requires_grad], **defaults)
    # It decorates an optimiser that nobody asked for with torch.compile, which imports for seconds. And where it names
    # no device it expects the host's memory, to pin it say; a rank's default device is its GPU.
    unchanged = replace_attribute(torch, "compile", lambda model=None, **_: model or (lambda function: function))
    with unchanged, torch.device("cpu"):
        return deepspeed.initialize(model=module, optimizer=optimizer, config=config or deepspeed_config(stage))[0]


def is_available() -> bool:
    return importlib.util.find_spec("deepspeed") is not None


# Where it keeps the tensors that are neither a module's parameters nor an optimiser's state.
ATTRIBUTES = {
    "parameters": ("bit16_groups_flat", "param_buffer_of_bit16_for_cpu_offload_groups", "lp_param_buffer"),
    "gradients": ("averaged_gradients", "grad_partitions_flat_buffer"),
    "optimizer_state": ("single_partition_of_fp32_groups", "fp32_partitioned_groups_flat"),  # master copies
}


def held_by(engine: Any) -> dict[str, nn.Module | Callable[[], list[Tensor]]]:
    """What an engine keeps, by kind: record_memory(**held_by(engine)). Names that a version lacks hold nothing."""
    def tensors(names: tuple[str, ...]) -> list[Tensor]:
        leaves = tree_leaves([getattr(engine.optimizer, name, None) for name in names])
        return [leaf for leaf in leaves if isinstance(leaf, Tensor)]

    return {"model": engine.module, **{kind: partial(tensors, names) for kind, names in ATTRIBUTES.items()}}


def import_quietly() -> Any:
    """The module deepspeed, on this rank's accelerator, without its log and the warnings of its imports."""
    os.environ.setdefault("DS_ACCELERATOR", device().type)
    if device().type != "cpu":
        os.environ["LOCAL_RANK"] = str(device().index)  # the GPU that it takes; ranks may share one
    os.environ.setdefault("DEEPSPEED_LOG_LEVEL", "error")
    os.environ.setdefault("DS_SKIP_CUDA_CHECK", "1")
    warnings.filterwarnings("ignore", category=FutureWarning)
    try:
        import deepspeed
    except ImportError as error:
        raise ImportError(MISSING) from error
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    return deepspeed
