"""How long a device computes: matrix products, and passes over memory between them.

    P  FLOP/s that large products reach     W  bytes/s of the device's memory     w  bytes of a number

A product of (m, k) and (k, n) takes its arithmetic and one trip of its three matrices through memory, one after the
other:

    2 mkn / P + w (mk + kn + mn) / W  =  2 mkn / P (1 + w P/(2W) (1/n + 1/m + 1/k))

So a product is slow where one of its sizes is not large against P/W, the intensity of the machine: an H100 wants
hundreds, and a matrix that tensor parallelism has cut into eight has not got them. The roofline (flops.py) would take
the larger of the two instead; real kernels begin with a load and end with a store that nothing hides.
"""

from course_lib.costs.checks import above_zero


def matmul_seconds(m: float, k: float, n: float, flops_per_s: float, bytes_per_s: float, bytes_per_number: float = 2,
                   count: float = 1) -> float:
    """Seconds of `count` products (m, k) @ (k, n), one after the other. 0 where a size is 0."""
    P, W = above_zero(flops_per_s, "flops_per_s"), above_zero(bytes_per_s, "bytes_per_s")
    return count * (2 * m * k * n / P + bytes_per_number * (m * k + k * n + m * n) / W)


def pass_seconds(num_bytes: float, bytes_per_s: float, passes: float = 1) -> float:
    """Seconds of reading or writing `num_bytes` of memory `passes` times."""
    return passes * num_bytes / above_zero(bytes_per_s, "bytes_per_s")
