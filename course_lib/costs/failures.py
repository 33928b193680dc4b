"""How often a run of n devices fails, what that costs it, and how often it should save.

    M       mean seconds between two failures of the run: one of n devices is enough, so M = (of one device) / n
    delta   seconds that the run stands still to save; with a copy in the background, only the copying
    R       seconds from a failure until the run computes again: notice, start, load
    tau     seconds of work between two saves

Saving often costs delta / tau of the time. Saving seldom costs what has to be done again, tau / 2 per failure on
average, which is tau / (2 M) of the time. The sum of two such terms is smallest where both are equal:

    delta / tau = tau / (2 M)      =>      tau = sqrt(2 delta M)      (Young)

R is lost at each failure whatever tau is: it moves the goodput, which is the share of the time that is work and stays,
and not the best tau. Near the best tau the lost time hardly changes, so nobody has to hit it.

Failures come independently and equally often (exponentially distributed times between them).

Sources: Young 1974, "A first order approximation to the optimum checkpoint interval"; Daly 2006, "A higher order
estimate of the optimum checkpoint interval for restart dumps".
"""

import math

from course_lib.costs.checks import above_zero, at_least


def seconds_between_failures(num_failures: float, over_s: float, devices: int, num_devices: int) -> float:
    """M of `num_devices`, where `devices` of them failed `num_failures` times in `over_s` seconds.

    Llama 3: 419 times in 54 days on 16,384 GPUs, so every 3.1 hours; 100 GPUs would see one in 21 days.

    >>> M = seconds_between_failures(419, over_s=54 * 86_400, devices=16_384, num_devices=1024)
    >>> f"{M / 3600:.0f} hours"
    '49 hours'
    """
    above_zero(num_failures, "num_failures")
    above_zero(over_s, "over_s")
    return over_s / num_failures * at_least(devices, 1, "devices") / at_least(num_devices, 1, "num_devices")


def chance_of_no_failure(seconds: float, M: float) -> float:
    """That a run of `seconds` gets through in one go: e^(-t/M)."""
    return math.exp(-seconds / above_zero(M, "M"))


def young_interval(delta: float, M: float) -> float:
    """tau = sqrt(2 delta M): where the derivative of delta / tau + tau / (2 M) is 0.

    >>> f"{young_interval(delta=60, M=3 * 3600) / 60:.0f} minutes of work between two saves of a minute"
    '19 minutes of work between two saves of a minute'
    """
    return math.sqrt(2 * above_zero(delta, "delta") * above_zero(M, "M"))


def daly_interval(delta: float, M: float) -> float:
    """tau to higher order: good also where saving takes nearly as long as a run lasts.

    For delta < 2 M: sqrt(2 delta M) (1 + sqrt(delta / 2M) / 3 + (delta / 2M) / 9) - delta; otherwise M.
    """
    xi = above_zero(delta, "delta") / (2 * above_zero(M, "M"))
    if xi >= 1:
        return M
    return math.sqrt(2 * delta * M) * (1 + math.sqrt(xi) / 3 + xi / 9) - delta


def first_order_loss(tau: float, delta: float, M: float, R: float = 0.0) -> float:
    """The share of the time that is lost, as one adds it up by hand: delta / tau + (tau / 2 + R) / M."""
    return delta / above_zero(tau, "tau") + (tau / 2 + R) / above_zero(M, "M")


def expected_seconds(work_s: float, tau: float, delta: float, M: float, R: float = 0.0) -> float:
    """How long `work_s` seconds of work take, with saves, failures, restarts, and failures while saving or restarting.

    M e^(R/M) (e^((tau + delta)/M) - 1) work / tau (Daly).
    """
    above_zero(tau, "tau")
    above_zero(M, "M")
    # expm1 and not exp - 1: where failures are rare the difference of two numbers near 1 has no digits left.
    return M * math.exp(R / M) * math.expm1((tau + delta) / M) * above_zero(work_s, "work_s") / tau


def goodput(tau: float, delta: float, M: float, R: float = 0.0) -> float:
    """The share of the time that is work and stays: work / expected_seconds. 1 is perfect, 0: the run never ends.

    To first order 1 - (delta / tau + (tau / 2 + R) / M), see first_order_loss.

    >>> f"{goodput(tau=19 * 60, delta=60, M=3 * 3600, R=300):.0%}"
    '87%'
    """
    return 1 / expected_seconds(1.0, tau, delta, M, R)


def expected_loss(tau: float, delta: float, M: float, R: float = 0.0) -> float:
    """The share of the time that is lost: 1 - goodput."""
    return 1 - goodput(tau, delta, M, R)
