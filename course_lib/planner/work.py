"""The work of a layer: all of a job that its time and its memory depend on, so that they are computed once."""

from __future__ import annotations

from dataclasses import dataclass

from course_lib.facts import Shape
from course_lib.planner.job import Job
from course_lib.planner.software import Software


@dataclass(frozen=True)
class Work:
    """n: tokens of the micro-batch on this rank. Others as in Job."""

    shape: Shape
    t: int
    cp: int
    ep: int
    etp: int
    micro_batch: int
    s: int
    recompute: str
    sequence_parallel: bool
    flash: bool
    dropout: bool
    imbalance: float
    software: Software
    precision: str
    modules: tuple[str, ...]
    lora_rank: int = 0

    @property
    def n(self) -> float:
        """Tokens of a micro-batch."""
        return self.micro_batch * self.s / self.cp


def work_of(job: Job, recompute: str = "") -> Work:
    """The part of a job that decides the time of one layer; `recompute` in the place of the job's own, if given."""
    L = job.layout
    return Work(job.shape, L.tp, L.cp, L.ep, L.etp, job.micro_batch, job.sequence_length, recompute or job.recompute,
                job.sequence_parallel, job.flash, job.dropout, job.expert_imbalance, job.software,
                job.precision, job.recompute_modules, job.lora_rank)
