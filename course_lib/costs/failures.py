"""What failures cost a long run: steps that are lost, and the checkpoints that keep them few.

    M  mean time between failures of the whole machine     n  devices     C  seconds that writing a checkpoint stops it
    R  seconds from a failure until training goes on       tau  seconds of training between two checkpoints

Of the time, C/tau goes into checkpoints, and each failure costs R and on average half an interval:

    lost(tau) = C/tau + (R + tau/2)/M          least at tau = sqrt(2 C M)

Sources: Young 1974; Daly 2006, "A higher order estimate of the optimum checkpoint interval".
"""

from math import sqrt

from course_lib.costs.checks import above_zero, at_least


def mean_time_between_failures(device_hours_per_failure: float, num_devices: int) -> float:
    """M in seconds: any device that fails stops all n."""
    return 3600 * above_zero(device_hours_per_failure, "device_hours_per_failure") / at_least(
        num_devices, 1, "num_devices")


def best_interval(checkpoint_s: float, M: float) -> float:
    """tau = sqrt(2 C M), in seconds."""
    return sqrt(2 * above_zero(checkpoint_s, "checkpoint_s") * above_zero(M, "M"))


def lost_share(checkpoint_s: float, restart_s: float, M: float, interval_s: float | None = None) -> float:
    """Of the time, what checkpoints and failures take; `interval_s`: None for the best. May exceed 1: no progress."""
    tau = best_interval(checkpoint_s, M) if interval_s is None else above_zero(interval_s, "interval_s")
    return checkpoint_s / tau + (restart_s + tau / 2) / above_zero(M, "M")
