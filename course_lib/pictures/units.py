"""Bytes and seconds in a unit that suits."""


def human_bytes(num_bytes: float) -> str:
    """`num_bytes` with a decimal unit: 512 B, 1.5 kB, 20.0 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(num_bytes) < 1000 or unit == "GB":
            return f"{num_bytes:.0f} B" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    raise AssertionError("unreachable: GB always returns")


def human_seconds(seconds: float) -> str:
    """`seconds` in a unit that suits: 120 us, 3.4 ms, 1.25 s."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"
