"""The search: every layout that can be built and fits, the best first, and what nearly fits.

Candidates come with a time that nothing can go below: what ranks compute and send, and the bubble, without the messages
of data parallelism and the optimiser, which depend on ZeRO's stage. They are looked at from the smallest one on, until
that time is `slowest` times the best step found. What is listed does not depend on it: a search without that bound
finds the same (tests/planner/test_plan.py). First comes the shortest step; among those that no estimate can tell apart,
the simplest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from math import ceil, inf

from course_lib.planner.candidates import ALL, Asked, Choices, schedules, with_zero, zero_stages
from course_lib.planner.constants import FITTED
from course_lib.planner.estimate import Estimate, step_seconds
from course_lib.planner.job import Job
from course_lib.planner.memory import memory_bytes, stages_at

TIE = 0.01  # of a step
SLOWEST = 1.25  # times the best: slower layouts are not listed
Memory = dict[str, float]  # bytes by kind
Progress = Callable[[int, float], None]


def search(asked: Asked, slowest: float = SLOWEST, told: Progress = lambda looked, best_s: None
           ) -> tuple[list[Estimate], list[Estimate]]:
    """(plans, the best first; faster ones that nearly fit). told: hears now and then how many jobs were looked at, and
    the best step so far. Layouts that leave devices idle are looked at where they
    could be faster than all that use every device: as fast as these could be at best, in proportion to the devices.
    """
    plans: list[Estimate] = []
    near: list[Estimate] = []
    best, world = inf, asked.cluster.num_devices

    def look(counts: range, slowest: float) -> float:
        """Look at all layouts of so many devices whose step may be below `slowest` times the best. Returns the least
        time that any of them could take.
        """
        nonlocal best
        candidates = candidates_by_bound(asked, counts)
        for bound, job in candidates:
            # Candidates are sorted by what they cannot go below: from here on none can be listed.
            if bound > slowest * best:
                break
            told(len(plans) + len(near), best)
            for sharded, memory in variants(job, asked):
                each = Estimate(sharded, asked.rates, FITTED, memory, step_seconds(sharded, asked.rates))
                if each.memory_bytes > asked.limit_bytes:
                    near.append(each)
                else:
                    plans.append(each)
                    best = min(best, each.step_s)
        return candidates[0][0] if candidates else inf

    # All devices first: fewer are worth a look only where they could beat that in proportion.
    ideal = look(range(world, world + 1), slowest)
    fewest = ceil(world * ideal / best) if plans else 1 if asked.choices.data else world // 2 + 1
    look(range(fewest, world), 1.0 if plans else slowest)
    listed = sort_plans(each for each in plans if each.step_s <= slowest * best)
    return listed, sorted((each for each in near if each.step_s < best), key=lambda each: each.step_s)


def candidates_by_bound(asked: Asked, counts: range) -> list[tuple[float, Job]]:
    """All schedules that may fit, with the time that they cannot go below, the shortest first: no choice of ZeRO's
    stage or of recomputation makes the step shorter.

    What does not fit with single rows, no chunks and all layers made again fits with nothing else.
    """
    found, hopeless = [], set()
    for job in schedules(asked, counts):
        first = (job.layout, job.micro_batch)
        if job.layout in hopeless or first in hopeless:
            continue
        if job.v == 1 and not nearly_fits(find_leanest(job, asked), asked):
            hopeless.add(job.layout if job.micro_batch == 1 else first)
            continue
        step = step_seconds(with_most_sharding(job, asked.choices), asked.rates)
        found.append((sum(step.values()) - step["dp"] - step["optimiser"], job))
    return sorted(found, key=lambda pair: pair[0])


def variants(job: Job, asked: Asked) -> Iterator[tuple[Job, Memory]]:
    """By ZeRO's stage, with as little made again as lets it fit; and what nearly fits. Where software gathers no layers
    ahead, gradients are sharded (stage 2) only if they have to be: each micro-batch then sends them.
    """
    if not nearly_fits(find_leanest(job, asked), asked):
        return
    whole_fit = False  # gradients that are not sharded
    for zero in zero_stages(job.layout, asked.choices):
        if zero == 2 and whole_fit and not job.software.shards_layers:
            continue
        for changed, memory in recompute_variants(with_zero(job, zero), asked):
            if zero == 1 and changed.recompute == "none" and sum(memory.values()) <= asked.limit_bytes:
                whole_fit = True
            if sum(memory.values()) <= asked.nearly_bytes:
                yield changed, memory


def recompute_variants(job: Job, asked: Asked) -> Iterator[tuple[Job, Memory]]:
    """Nothing; scores or light modules; all layers; the fewest layers; until it fits."""
    for policy in asked.choices.recompute:
        changed = with_policy(job, policy, asked.choices)
        if policy == "selective" and changed == job and len(asked.choices.recompute) > 1:
            continue
        memory = memory_of(changed, asked)
        yield changed, memory
        if sum(memory.values()) > asked.limit_bytes:
            continue
        if policy == "full" and not asked.choices.whole and (fewest := fewest_layers(changed, asked)):
            yield fewest, memory_of(fewest, asked)
        return


def with_policy(job: Job, policy: str, choices: Choices = ALL) -> Job:
    """Made again: nothing, everything, or ("selective") scores where attention stores them; else light modules, if they
    are asked for.
    """
    if policy == "selective" and job.flash:
        return job.changed(recompute="none", recompute_modules=light_modules(job) if choices.light else ())
    return job.changed(recompute=policy)


def light_modules(job: Job) -> tuple[str, ...]:
    """What takes next to no time to make again, of what the software can make again alone and the model has."""
    shape = job.shape
    has = {"mla_up_proj": bool(shape.latent), "moe_act": shape.num_experts > 1}
    return tuple(name for name in job.software.light_modules if has.get(name, True))


def fewest_layers(job: Job, asked: Asked) -> Job | None:
    """The fewest of each stage that are to be made again so that it fits: whole multiples of v, as Megatron counts
    them in each chunk. None where all are needed.
    """
    low, high = 0, ceil(job.num_layers / (job.layout.pp * job.v))  # layers of a chunk: too few, enough
    per_chunk = high
    while high - low > 1:
        middle = (low + high) // 2
        enough = fits(job.changed(recompute_layers=middle * job.v), asked)
        low, high = (low, middle) if enough else (middle, high)
    return job.changed(recompute_layers=high * job.v) if high < per_chunk else None


def find_leanest(job: Job, asked: Asked) -> Job:
    """The job with all sharded and made again that may be."""
    policies, choices = asked.choices.recompute, asked.choices
    return with_policy(with_most_sharding(job, choices), "full" if "full" in policies else policies[-1], choices)


def with_most_sharding(job: Job, choices: Choices = ALL) -> Job:
    """The job with the highest ZeRO stage that may be chosen, which needs least memory."""
    return with_zero(job, max(zero_stages(job.layout, choices), default=0))


def nearly_fits(job: Job, asked: Asked) -> bool:
    """Whether it misses the device by little."""
    return bytes_of(job, asked) <= asked.nearly_bytes


def fits(job: Job, asked: Asked) -> bool:
    """Whether it leaves the room that was asked for."""
    return bytes_of(job, asked) <= asked.limit_bytes


def bytes_of(job: Job, asked: Asked) -> float:
    """Bytes of the fullest device."""
    return sum(memory_of(job, asked).values())


def memory_of(job: Job, asked: Asked) -> Memory:
    """Bytes of the fullest device, by kind."""
    return memory_bytes(job, stages_at(job, asked.rates))


def sort_plans(plans: Iterable[Estimate]) -> list[Estimate]:
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
    return axes, job.v, again, layout.zero_stage, plan.step_s


def pareto(plans: Sequence[Estimate]) -> list[Estimate]:
    """The plans that no other one beats in both time and memory, the fastest first."""
    front: list[Estimate] = []
    for each in sorted(plans, key=lambda each: (each.step_s, each.memory_bytes)):
        if not front or each.memory_bytes < front[-1].memory_bytes:
            front.append(each)
    return front


def pick_distinct(plans: Iterable[Estimate]) -> list[Estimate]:
    """The first plan of each set of axes, whatever its chunks, micro-batch, ZeRO stage and recomputation."""
    found: dict[object, Estimate] = {}
    for each in plans:
        found.setdefault(replace(each.layout, zero_stage=0), each)
    return list(found.values())
