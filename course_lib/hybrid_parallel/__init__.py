"""Chapter 9: every axis at once. One model under any mix of dp, pp, cp, tp, ep and etp, and any ZeRO stage.

    layout.py       which rank stands where, and its groups
    kinds.py        which gradients are added up where
    parallelize.py  a plain GPT becomes this rank's part of it; model.py, what that is, with
                    ZeRO-3 of a stage
    experts.py      experts dealt out over ep, and what balances them; split_experts.py, over etp
    optimizer.py    any optimiser of torch's, sharded as the layout says
    norms.py        the norm of a gradient in pieces of every kind
    trainer.py      HybridTrainer; learning_rate.py, metrics.py and report.py, what it uses and reports
    state.py        what a rank has of the plain model and its optimiser, for a checkpoint
    checkpoints.py  a trainer's checkpoints, under one layout and gone on with under another
    dry_run.py      what a layout would refuse, before there are ranks

All but the layout loads on first use: who only plans does not have to import torch.
"""

from course_lib.hybrid_parallel.layout import ParallelLayout
from course_lib.lazy import load_on_use

load_on_use(__name__, {
    "checkpoints": ("resume_run", "save_run", "saver"),
    "kinds": ("KINDS", "Kind", "reduce_gradients"),
    "learning_rate": ("LearningRate",),
    "metrics": ("StepMetrics", "bytes_by_axis"),
    "model": ("HybridModel",),
    "norms": ("clip_grad_norm_",),
    "optimizer": ("HybridOptimizer",),
    "parallelize": ("SCHEDULES", "parallelize"),
    "report": ("TrainingReport",),
    "state": ("gather_whole", "gradient_pieces", "pieces"),
    "trainer": ("HybridTrainer",),
})

__all__ = [
    "KINDS",
    "SCHEDULES",
    "HybridModel",
    "HybridOptimizer",
    "HybridTrainer",
    "Kind",
    "LearningRate",
    "ParallelLayout",
    "StepMetrics",
    "TrainingReport",
    "bytes_by_axis",
    "clip_grad_norm_",
    "gather_whole",
    "gradient_pieces",
    "parallelize",
    "pieces",
    "reduce_gradients",
    "resume_run",
    "save_run",
    "saver",
]
