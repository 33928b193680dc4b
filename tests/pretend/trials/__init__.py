"""Every chapter's library code on whatever device its ranks have, held against one process on the CPU.

Each trial is what a cell would do: models and rows lie on the rank's own device, which is the default one.
"""

from tests.pretend.trials import (
    checkpoint,
    collectives,
    data_parallel,
    expert_parallel,
    hybrid_parallel,
    pipeline_parallel,
    reference_and_runtime,
    sequence_parallel,
    tensor_parallel,
    torchs_own,
    zero,
)
from tests.pretend.trials.register import TRIALS, run, run_all

__all__ = [
    "TRIALS",
    "checkpoint",
    "collectives",
    "data_parallel",
    "expert_parallel",
    "hybrid_parallel",
    "pipeline_parallel",
    "reference_and_runtime",
    "run",
    "run_all",
    "sequence_parallel",
    "tensor_parallel",
    "torchs_own",
    "zero",
]
