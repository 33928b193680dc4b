"""Bytes and seconds in a unit that suits: the formatters for everything that the course draws or says.

Bytes are decimal, 1 kB = 1000 bytes, as the field says GB of memory and GB/s of a link. Only what is compared with
bucket_cap_mb, which torch counts in MiB, is said in MiB.
"""

BYTES_IN = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9}


def human_bytes(num_bytes: float) -> str:
    """`num_bytes` with a decimal unit: 512 B, 1.5 kB, 20.0 MB.

    >>> human_bytes(1536), human_bytes(2**30)
    ('1.5 kB', '1.1 GB')
    """
    unit = next((unit for unit, size in BYTES_IN.items() if abs(num_bytes) < 1000 * size), "GB")
    return f"{num_bytes:.0f} B" if unit == "B" else f"{num_bytes / BYTES_IN[unit]:.1f} {unit}"


def gigabytes(num_bytes: float) -> str:
    """`num_bytes` in GB whatever it is, to be compared with a device's memory: 14 GB, 2,794 GB, 1.75 GB.

    >>> gigabytes(14e9), gigabytes(2.794e12)
    ('14 GB', '2,794 GB')
    """
    value = num_bytes / BYTES_IN["GB"]
    return f"{value:,.0f} GB" if value >= 100 else f"{value:.3g} GB"


def mebibytes(num_bytes: float) -> str:
    """`num_bytes` in MiB, as beside a setting in MiB: 147 MiB, 25 MiB, 768 KiB.

    >>> mebibytes(25 * 2**20)
    '25 MiB'
    """
    if num_bytes < 1000 * 2**10:
        return f"{num_bytes / 2**10:.3g} KiB"
    value = num_bytes / 2**20
    return f"{value:,.0f} MiB" if value >= 100 else f"{value:.3g} MiB"


def human_seconds(seconds: float) -> str:
    """`seconds` in a unit that suits, with three figures: 12.3 ms, 1.46 s, 380 µs.

    >>> human_seconds(0.0123), human_seconds(0.00038)
    ('12.3 ms', '380 µs')
    """
    for size, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= 0.9995 * size:
            figure = seconds / size
            return f"{figure:.0f} {unit}" if figure >= 99.95 else f"{figure:.3g} {unit}"
    return "0 s"
