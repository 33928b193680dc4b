"""Plans: all layouts of a model on a cluster that can be built and fit, the best first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

from course_lib.facts import Model, Shape
from course_lib.planner.candidates import Asked, ask
from course_lib.planner.cluster import Cluster
from course_lib.planner.estimate import Estimate
from course_lib.planner.nothing_fits import reason_of_none
from course_lib.planner.search import SLOWEST, search


class Plans(list[Estimate]):
    """Estimates, the best first. `asked`: what for. `nearly`: faster ones that fill the device beyond its room for
    fragments, or miss it by under a tenth.
    """

    def __init__(self, found: Iterable[Estimate], asked: Asked, nearly: Sequence[Estimate] = ()) -> None:
        super().__init__(found)
        self.asked, self.nearly = asked, list(nearly)

    @property
    def idle_devices(self) -> int:
        """Devices of the cluster that the first plan does not use."""
        return self.asked.cluster.num_devices - (self[0].num_devices if self else 0)

    @cached_property
    def reason(self) -> str:
        """Why there is none, and what would help; "" where there are plans."""
        return "" if self else reason_of_none(self.asked)

    def __getitem__(self, index: Any) -> Any:
        if not self and not isinstance(index, slice):
            raise IndexError(self.reason)
        return super().__getitem__(index)


def plan(model: Model | Shape, cluster: Cluster, global_batch: int, *, slowest: float = SLOWEST, **how: Any) -> Plans:
    """Estimates of all layouts that can be built, fit, and take at most `slowest` times as long as the best; ties with
    the first of them simplest first. `reasons_for` says why one is worse, `why_not` why one is missing.

    Where the model does not divide the devices, plans use fewer (Plans.idle_devices). An empty one has a `reason`.
    global_batch: rows of a step. choices: what the search may choose from. room: share of what a device can allocate
    that an estimate may fill, 0.9 of it; the rest is for fragments and for what the estimate misses. Others as in Job:
    sequence_length, precision, software, gradient_bytes, flash, sequence_parallel (wherever there is tensor
    parallelism), offload and so on.

    >>> from course_lib.facts import model
    >>> from course_lib.planner import Choices, cluster
    >>> only_replicas = Choices(tensor=(1,), pipeline=(1,), context=(1,), micro_batches=(1,), recompute=("none",))
    >>> found = plan(model("Llama 3 8B"), cluster("H100", 8), global_batch=64, choices=only_replicas)
    >>> [str(each.layout) for each in found]
    ['dp8,zero2', 'dp8,zero3']
    >>> plan(model("Llama 2 70B"), cluster("H100", 2), global_batch=8, choices=only_replicas)
    []
    """
    asked = ask(model, cluster, global_batch, **how)
    found, nearly = search(asked, slowest)
    return Plans(found, asked, nearly)
