"""The one learning-rate schedule: up in a straight line, then down along a cosine.

Source: Loshchilov and Hutter 2017, "SGDR"; a tenth of the peak in the end, as GPT-3 has it (Brown et al. 2020).
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class LearningRate:
    """peak: reached after `warmup_steps`. total_steps: where the cosine ends, at final * peak; None stays at the peak.
    """

    peak: float = 1e-3
    warmup_steps: int = 0
    total_steps: int | None = None
    final: float = 0.1

    def __post_init__(self) -> None:
        if not self.peak > 0 or self.warmup_steps < 0 or not 0 <= self.final <= 1:
            raise ValueError(f"{self}: expected a peak above 0, warmup_steps of at least 0, final from 0 to 1")
        if self.total_steps is not None and self.total_steps <= self.warmup_steps:
            raise ValueError(f"total_steps={self.total_steps} with warmup_steps={self.warmup_steps}: expected more")

    def __call__(self, step: int) -> float:
        """The learning rate of step `step`, from 0."""
        if step < self.warmup_steps:
            return self.peak * (step + 1) / (self.warmup_steps + 1)
        if self.total_steps is None:
            return self.peak
        done = min(1.0, (step - self.warmup_steps) / (self.total_steps - self.warmup_steps))
        return self.peak * (self.final + (1 - self.final) * (1 + math.cos(math.pi * done)) / 2)
