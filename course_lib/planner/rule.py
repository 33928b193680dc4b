"""Rules of thumb of the papers, as baselines beside the search."""

from __future__ import annotations

from course_lib.costs.flops import count_parameters
from course_lib.facts import Model, Shape
from course_lib.hybrid_parallel.layout import ParallelLayout
from course_lib.planner.cluster import Cluster
from course_lib.planner.job import shape_of

BYTES_PER_PARAMETER = 18  # 2 weights, 4 gradients, 12 Adam in mixed precision
SHARE_FOR_STATE = 0.7  # of the data sheet's memory; activations get the rest


def divisors(n: int) -> list[int]:
    """Whole numbers that divide n, ascending."""
    return [d for d in range(1, n + 1) if n % d == 0]


def rule_of_thumb(model: Model | Shape, cluster: Cluster) -> ParallelLayout:
    """Takeaways 1 to 3 of Narayanan et al. 2021 (SC'21): tensor parallelism first, up to a node; then as few pipeline
    stages as let the model fit; everything else is data parallelism. ValueError where nothing fits.

    Fits: 18 bytes a parameter take at most 70 % of the memory.
    """
    shape = shape_of(model)
    state, room = BYTES_PER_PARAMETER * count_parameters(shape), SHARE_FOR_STATE * cluster.device.memory_bytes
    tensor = [t for t in divisors(cluster.devices_per_node) if not (shape.num_heads % t or shape.ffn_size % t)]
    for t in tensor:
        if state / t <= room and cluster.num_devices % t == 0:
            return ParallelLayout(dp=cluster.num_devices // t, tp=t)
    t = tensor[-1]
    for p in divisors(shape.num_layers):
        if state / (t * p) <= room and cluster.num_devices % (t * p) == 0:
            return ParallelLayout(dp=cluster.num_devices // (t * p), pp=p, tp=t)
    raise ValueError(f"{state / 1e12:.2f} TB of state on {cluster.num_devices} {cluster.device.name}: no tensor and "
                     f"pipeline parallelism that divides the model lets it fit in {room / 1e9:.0f} GB each")
