"""Chapter 9: every axis at once. One model under any mix of dp, pp, cp, tp, ep and etp, and any ZeRO stage.

    layout.py       which rank stands where, and its groups
    kinds.py        which gradients are added up where
    parallelize.py  a plain GPT becomes this rank's part of it, experts too; what a layout refuses
    model.py        that part, its pass forward and backward, and what a checkpoint has of it
    optimizer.py    any optimiser of torch's, sharded as the layout says; the gradient's norm, the learning rate
    trainer.py      HybridTrainer, and what it measures and reports
    checkpoints.py  a trainer's checkpoints, under one layout and gone on with under another

All but the layout loads on first use: who only plans does not have to import torch.
"""

from course_lib.hybrid_parallel.layout import ParallelLayout
from course_lib.lazy import load_on_use

load_on_use(__name__, {
    "checkpoints": ("resume_run", "save_run"),
    "kinds": ("KINDS", "Kind", "reduce_gradients"),
    "model": ("HybridModel", "gather_whole", "gradient_pieces", "pieces"),
    "optimizer": ("HybridOptimizer", "LearningRate", "clip_grad_norm_"),
    "parallelize": ("parallelize",),
    "trainer": ("HybridTrainer", "StepMetrics", "TrainingReport", "bytes_by_axis"),
})
