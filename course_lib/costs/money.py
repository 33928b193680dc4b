"""From FLOPs to days, dollars and kilowatt-hours, the tokens to read in that time, and what failures cost a run.

    C  FLOPs of a training run     n  devices     P  peak of one device, FLOP/s     u  utilisation, the share of P in
    use

    M       mean seconds between two failures of the run: one of n devices is enough, so M = (of one device) / n
    delta   seconds that the run stands still to save; with a copy in the background, only the copying
    R       seconds from a failure until the run computes again: notice, start, load
    tau     seconds of work between two saves

Saving often costs delta / tau of the time. Saving seldom costs what has to be done again, tau / 2 per failure on
average, which is tau / (2 M) of the time. The sum of two such terms is smallest where both are equal:

    delta / tau = tau / (2 M)      =>      tau = sqrt(2 delta M)      (Young)

R is lost at each failure whatever tau is: it moves the goodput, which is the share of the time that is work and stays,
and not the best tau. Near the best tau the lost time hardly changes, so nobody has to hit it. Failures come
independently and equally often (exponentially distributed times between them).

Sources: Narayanan et al. 2021, SC'21, equation 4 (T = 8TP / nX); Young 1974, "A first order approximation to the
optimum checkpoint interval"; Daly 2006, "A higher order estimate of the optimum checkpoint interval for restart dumps".
"""

import math

from course_lib.facts.fact import above_zero, at_least, positive_share

DAY_S, YEAR_S, HOUR_S = 86_400, 365.25 * 86_400, 3600


def training_seconds(flops: float, num_devices: int, peak_flops_per_s: float, utilisation: float) -> float:
    """Seconds of a run of C FLOPs on n devices: T = C / (n P u).

    >>> f"{training_seconds(7.2e23, num_devices=1024, peak_flops_per_s=989e12, utilisation=0.4) / DAY_S:.1f} days"
    '20.6 days'
    >>> training_seconds(7.2e23, 1024, 989e12, utilisation=40)
    Traceback (most recent call last):
    ValueError: utilisation=40: expected a share above 0 and at most 1: is it a percentage?
    """
    C, P = above_zero(flops, "flops"), above_zero(peak_flops_per_s, "peak_flops_per_s")
    return C / (at_least(num_devices, 1, "num_devices") * P * positive_share(utilisation, "utilisation"))


def training_days(flops: float, num_devices: int, peak_flops_per_s: float, utilisation: float) -> float:
    """training_seconds in days of 24 hours."""
    return training_seconds(flops, num_devices, peak_flops_per_s, utilisation) / DAY_S


def sc21_training_seconds(num_tokens: float, num_parameters: float, num_devices: int,
                          achieved_flops_per_s: float) -> float:
    """T = 8TP / nX, equation 4 of the Megatron paper: 8 and not 6, because X counts the forward pass that is done
    twice.
    """
    T, P, X = num_tokens, num_parameters, achieved_flops_per_s
    return 8 * above_zero(T, "num_tokens") * above_zero(P, "num_parameters") / (
        at_least(num_devices, 1, "num_devices") * above_zero(X, "achieved_flops_per_s"))


def dollars(seconds: float, num_devices: int, dollars_per_device_hour: float) -> float:
    """Dollars for renting all devices for the whole time, by the hour.

    >>> dollars(seconds=86_400, num_devices=8, dollars_per_device_hour=2.5)
    480.0
    """
    hours = above_zero(seconds, "seconds") / HOUR_S
    return hours * at_least(num_devices, 1, "num_devices") * above_zero(dollars_per_device_hour,
                                                                        "dollars_per_device_hour")


def kilowatt_hours(seconds: float, num_devices: int, watts_per_device: float, pue: float = 1.0) -> float:
    """Kilowatt-hours of all devices. watts_per_device: with its share of the server. pue: what the data centre draws
    over what its computers draw, 1 or more.

    >>> round(kilowatt_hours(seconds=86_400, num_devices=8, watts_per_device=1000, pue=1.2), 1)
    230.4
    """
    if not 1 <= pue < float("inf"):
        raise ValueError(f"pue={pue!r}: expected 1 or more, a data centre never draws less than its computers")
    watts = above_zero(watts_per_device, "watts_per_device") * at_least(num_devices, 1, "num_devices")
    return watts * pue * above_zero(seconds, "seconds") / HOUR_S / 1000


def tokens_per_s(num_parameters: float, num_devices: int, peak_flops_per_s: float, utilisation: float) -> float:
    """What training eats: n P u / 6N tokens a second.

    >>> f"{tokens_per_s(num_parameters=8e9, num_devices=8, peak_flops_per_s=989e12, utilisation=0.4):,.0f}"
    '65,933'
    """
    n, P = at_least(num_devices, 1, "num_devices"), above_zero(peak_flops_per_s, "peak_flops_per_s")
    return n * P * positive_share(utilisation, "utilisation") / (6 * above_zero(num_parameters, "num_parameters"))


def reading_s(num_bytes: float, bytes_per_s: float, num_readers: int = 1) -> float:
    """Seconds to read everything once, shared by readers that do not slow each other."""
    return above_zero(num_bytes, "num_bytes") / (above_zero(bytes_per_s, "bytes_per_s")
                                                 * at_least(num_readers, 1, "num_readers"))


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
