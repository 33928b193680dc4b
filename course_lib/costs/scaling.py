"""What more devices give: Amdahl, Gustafson, and a step's time with its communication.

    n  devices     P  the share of the work that can be done in parallel     S  speed-up     T1  time on one device

Sources: Amdahl 1967; Gustafson 1988; Hockney 1994 (alpha + beta M).
"""

import math
from collections.abc import Sequence

from course_lib.costs.links import Link, dot
from course_lib.costs.network import Network, all_reduce_s
from course_lib.costs.numbers import above_zero, at_least, fraction


def amdahl(parallel_share: float, num_devices: int) -> float:
    """S = 1 / ((1 - P) + P/n): the work is fixed. However large n, it stays below 1 / (1 - P).

    >>> [round(amdahl(0.95, n), 1) for n in (8, 64, 10**9)]
    [5.9, 15.4, 20.0]
    """
    P, n = fraction(parallel_share, "parallel_share"), at_least(num_devices, 1, "num_devices")
    return 1 / ((1 - P) + P / n)


def gustafson(parallel_share: float, num_devices: int) -> float:
    """S = (1 - P) + P n: the time is fixed, and more devices do more work. P is measured on the parallel run."""
    P, n = fraction(parallel_share, "parallel_share"), at_least(num_devices, 1, "num_devices")
    return (1 - P) + P * n


def fit_amdahl(num_devices: Sequence[int], speed_ups: Sequence[float]) -> float:
    """The P that comes closest, by least squares of 1/S = 1 - P (1 - 1/n), kept within 0 and 1.

    ValueError for lists of unequal length, or without a run on two devices or more.
    """
    n, S = [*map(float, num_devices)], [*map(float, speed_ups)]
    if len(n) != len(S):
        raise ValueError(f"{len(n)} device counts and {len(S)} speed-ups: expected two lists of the same length")
    if min(n, default=0) < 1 or max(n) <= 1 or not all(math.isfinite(each) and each > 0 for each in S):
        raise ValueError(f"num_devices={n}, speed_ups={S}: expected devices from 1, one count above 1, and speed-ups "
                         "above 0")
    gained, missing = [1 - 1 / each for each in n], [1 - 1 / each for each in S]
    return min(max(dot(gained, missing) / dot(gained, gained), 0.0), 1.0)


def data_parallel_step(single_s: float, num_devices: int, gradient_bytes: float, wires: Link | Network) -> float:
    """Seconds of a step with what it really sends: T1/n and an all-reduce of the gradients, not overlapped.

    wires: one link between any two devices, all alike, around a ring; or those of a cluster.
    """
    n = at_least(num_devices, 1, "num_devices")
    return above_zero(single_s, "single_s") / n + all_reduce_s(wires, gradient_bytes, n)


def strong_efficiency(single_s: float, parallel_s: float, num_devices: int) -> float:
    """T1 / (n Tn): the same work on n devices.

    >>> strong_efficiency(single_s=8.0, parallel_s=1.25, num_devices=8)
    0.8
    """
    return above_zero(single_s, "single_s") / (at_least(num_devices, 1, "num_devices") * above_zero(parallel_s,
                                                                                                    "parallel_s"))


def weak_efficiency(single_s: float, parallel_s: float) -> float:
    """T1 / Tn: n times the work on n devices."""
    return above_zero(single_s, "single_s") / above_zero(parallel_s, "parallel_s")
