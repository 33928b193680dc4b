"""What the papers say a schedule costs, each formula as one line with its letters.

    p  ranks    m  micro-batches    v  chunks a rank    F, I, W  time of a rank's layers for one micro-batch: forward,
                                                                 backward for the input, backward for the weights

A bubble has two conventions. Of the total: idle over all time of all ranks, which is what you pay for and get nothing.
Of the ideal: idle over computing time, which is how much longer the step takes than it had to.
"""


def bubble_of_total(p: int, m: int, v: int = 1) -> float:
    """GPipe, 1F1B (v = 1) and interleaved 1F1B, m a multiple of p there. Narayanan et al. 2021, section 2.2.

    >>> [f"{bubble_of_total(p=4, m=m):.0%}" for m in (1, 4, 8, 32)]
    ['75%', '43%', '27%', '9%']
    >>> f"{bubble_of_total(p=4, m=8, v=2):.0%}"
    '16%'
    """
    return (p - 1) / (v * m + p - 1)


def bubble_of_ideal(p: int, m: int, v: int = 1) -> float:
    """The same bubble, over the ideal time; this is the (p - 1)/m of the papers.

    >>> bubble_of_ideal(p=4, m=8)  # 27% of the total: the other convention
    0.375
    """
    return (p - 1) / (v * m)


def naive_bubble(p: int) -> float:
    """The bubble, of the total, where one rank works and the others wait: (p - 1)/p."""
    return (p - 1) / p


def zb_h1_bubble(p: int, m: int, F: float = 1, I: float = 1, W: float = 1) -> float:  # noqa: E741
    """The bubble of ZB-H1, of the total; m >= p and W <= F, I. Qi et al. 2023, table 1: idle are (p - 1)(F + I - W)."""
    idle = (p - 1) * (F + I - W)
    return float(idle / (m * (F + I + W) + idle))


def peak_gpipe(p: int, m: int, r: int) -> int:
    """Micro-batches in flight on rank r of GPipe: all m."""
    return m


def peak_1f1b(p: int, m: int, r: int) -> int:
    """Micro-batches in flight on rank r of 1F1B: as many as there are ranks from r to the end, however large m is."""
    return min(p - r, m)


def peak_interleaved(p: int, m: int, v: int, r: int) -> int:
    """Chunks in flight on rank r of interleaved 1F1B, each 1/v of a rank's layers: on rank 0 p v + p - 1 of them, 1 +
    (p - 1)/(p v) times as much as in 1F1B.

    Korthikanti et al. 2022, section 4.2.3.
    """
    return min(2 * (p - 1 - r) + (v - 1) * p + 1, v * m)


def balanced_layers(num_layers: int, p: int, head_in_layers: float) -> tuple[float, float]:
    """Layers on each ordinary stage, and on the last one, which has the read-out too, when all take equally long.

    Not rounded: who trains takes a layer off the ends where the read-out is heavy (Llama 3: 126 layers on 16 stages of
    8, "one off each end"; zero bubble: 22 for 24). Where the read-out is more than a stage, it alone is the last one.
    """
    if p == 1:
        return float(num_layers), float(num_layers)
    even = (num_layers + head_in_layers) / p
    if head_in_layers > even:
        return num_layers / (p - 1), 0.0
    return even, even - head_in_layers


def first_past_the_share(num_layers: int, p: int, head_in_layers: float) -> tuple[int, int]:
    """(layers on the first stage, on the last), as nanotron deals them out: a stage takes layers until it and those
    before it have more than their share of the work, so the first one, which goes furthest past it, is the largest.

    nanotron@e24d2483, src/nanotron/models/base.py, build_model.
    """
    share = (num_layers + head_in_layers) / p
    ends = [min(num_layers, int(share * stage) + 1) for stage in range(1, p)]  # the layer that passes the share
    return (ends[0], num_layers - ends[-1]) if p > 1 else (num_layers, num_layers)
