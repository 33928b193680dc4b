"""Feeding the devices: how fast training eats tokens, and how long reading them takes."""

from course_lib.costs.checks import above_zero, at_least, positive_share


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
