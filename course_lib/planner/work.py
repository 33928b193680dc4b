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
    return Work(shape=job.shape, t=L.tp, cp=L.cp, ep=L.ep, etp=L.etp, micro_batch=job.micro_batch,
                s=job.sequence_length, recompute=recompute or job.recompute, sequence_parallel=job.sequence_parallel,
                flash=job.flash, dropout=job.dropout, imbalance=job.expert_imbalance, software=job.software,
                precision=job.precision, modules=job.recompute_modules, lora_rank=job.lora_rank)
