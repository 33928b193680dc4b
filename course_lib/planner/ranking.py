"""Which plan comes first: the shortest step; among those that no estimate can tell apart, the simplest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from course_lib.planner.candidates import SAVING
from course_lib.planner.estimate import Estimate
from course_lib.planner.job import Job

TIE = 0.01  # of a step


def simplest_first(plans: Iterable[Estimate]) -> list[Estimate]:
    """The shortest step first; among those within a TIE of the shortest one left, the simplest."""
    left = sorted(plans, key=lambda each: (each.step_s, each.memory_bytes))
    ordered: list[Estimate] = []
    while left:
        tied = ties(left)
        ordered += sorted(tied, key=complexity)
        left = left[len(tied):]
    return ordered


def ties(plans: Sequence[Estimate], share: float = TIE) -> list[Estimate]:
    """The plans whose step is within `share` of the shortest one: no estimate can tell them apart."""
    shortest = min((each.step_s for each in plans), default=0.0)
    return [each for each in plans if each.step_s <= (1 + share) * shortest]


def complexity(plan: Estimate) -> tuple[float, ...]:
    """How much has to be set up and understood: axes, chunks, layers made again, what is sharded; then the time."""
    job, layout = plan.job, plan.layout
    axes = sum(size > 1 for size in (layout.dp, layout.pp, layout.cp, layout.tp, layout.ep))
    again = 0 if job.recompute == "none" else 1 if job.recompute == "selective" or not job.recompute_layers else 2
    return axes, job.v, again, layout.zero_stage, num_savings(job), plan.step_s


def num_savings(job: Job) -> int:
    """How many means of saving memory a job uses, each of which complicates it."""
    return sum((job.optimizer != "adam", job.offload != "none", job.lora_rank > 0, job.replicas > 1))


def pareto(plans: Sequence[Estimate]) -> list[Estimate]:
    """The plans that no other one beats in both time and memory, the fastest first."""
    front: list[Estimate] = []
    for each in sorted(plans, key=lambda each: (each.step_s, each.memory_bytes)):
        if not front or each.memory_bytes < front[-1].memory_bytes:
            front.append(each)
    return front


def distinct(plans: Iterable[Estimate]) -> list[Estimate]:
    """The first plan of each set of axes and of what saves memory on request, whatever its chunks, micro-batch, ZeRO
    stage and recomputation.
    """
    found: dict[object, Estimate] = {}
    for each in plans:
        how = tuple(getattr(each.job, name) for name in SAVING)
        found.setdefault((replace(each.layout, zero_stage=0), how), each)
    return list(found.values())
