"""From FLOPs to days, dollars and kilowatt-hours; and the tokens to read in that time.

    C  FLOPs of a training run     n  devices     P  peak of one device, FLOP/s     u  utilisation, the share of P in
    use

Source of T = 8TP / nX: Narayanan et al. 2021, SC'21, equation 4.
"""

from course_lib.costs.checks import above_zero, at_least, positive_share

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


def loading_bytes_per_s(tokens_each_s: float, bytes_per_token: float = 4) -> float:
    """Bytes a second of so many tokens, stored as 4-byte numbers; raw English is about as much, 4 characters a token.
    """
    return above_zero(tokens_each_s, "tokens_each_s") * above_zero(bytes_per_token, "bytes_per_token")


def reading_s(num_bytes: float, bytes_per_s: float, num_readers: int = 1) -> float:
    """Seconds to read everything once, shared by readers that do not slow each other."""
    return above_zero(num_bytes, "num_bytes") / (above_zero(bytes_per_s, "bytes_per_s")
                                                 * at_least(num_readers, 1, "num_readers"))
