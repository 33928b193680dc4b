"""A number as people type it, read into the unit that was asked for: "1.3 MiB", "40,000", "1.5M", "about 3 ms"."""

from __future__ import annotations

import math
import re

from course_lib.pictures.units import BYTES_IN

BYTES = {**BYTES_IN, "TB": 10**12, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
SECONDS = {"s": 1, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9, "min": 60, "h": 3600, "days": 86_400}
# In the size of the unit itself.
ENDINGS = {
    "bytes": BYTES,
    "MB": {ending: size / 1e6 for ending, size in BYTES.items()},
    "s": SECONDS,
    "hours": {ending: size / 3600 for ending, size in SECONDS.items()},
    "million": {"million": 1, "M": 1, "billion": 1e3},
    "times": {"times": 1, "x": 1},
    "%": {"%": 1},
}
# What else people write for an ending; upper and lower case are one.
SPELLINGS = {
    "byte": "B", "k": "kB", "m": "MB", "g": "GB", "t": "TB", "kilobyte": "kB", "megabyte": "MB", "gigabyte": "GB",
    "sec": "s", "second": "s", "us": "µs", "μs": "µs", "minute": "min", "hour": "h", "day": "days", "percent": "%",
    "×": "x",
}
# A comma, a space or _ stands between thousands, three digits each; a decimal part has a point.
NUMBER = re.compile(r"(?:(?:about|around|roughly|ca\.?|~|≈)\s*)?"
                    r"([-+−]?(?:\d{1,3}(?:[,_ ]\d{3})+|\d+)?(?:\.\d*)?(?:e[-+]?\d+)?)\s*([^\d\s.,][^\d.,]*)?",
                    re.IGNORECASE)
DECIMAL_COMMA = re.compile(r"\d,(?!\d{3}(?!\d))")


def read_number(text: str, unit: str) -> float:
    """What `text` means, in `unit`; an ending such as "MB" says otherwise. ValueError for what is no number."""
    found = NUMBER.fullmatch(text.strip())
    if found:
        digits, ending = found[1], (found[2] or "").strip()
        size = sizes(unit).get(spelling(ending, unit))
        try:
            number = float(re.sub("[,_ ]", "", digits).replace("−", "-"))
        except ValueError:
            number = math.nan
        if size is not None and math.isfinite(number):
            return number * size
    raise ValueError(f"{text!r}: {hint_for(text, unit)}")


def sizes(unit: str) -> dict[str, float]:
    """The endings that are understood, in lower case, with the size of one of them in `unit`."""
    known = {ending.lower(): size for ending, size in ENDINGS.get(unit, {}).items()}
    return {"": 1.0, unit.lower(): 1.0, unit.lower().removesuffix("s"): 1.0, **known}


def spelling(ending: str, unit: str) -> str:
    """An ending in lower case, as `sizes` has it."""
    plain = ending.lower()
    if plain in sizes(unit):
        return plain
    return SPELLINGS.get(plain, SPELLINGS.get(plain.removesuffix("s"), plain)).lower()


def hint_for(text: str, unit: str) -> str:
    """What would have been understood, said to somebody who typed `text`."""
    if DECIMAL_COMMA.search(text):
        return "a comma stands between thousands only, as in 1,300; a decimal part has a point, as in 1.3"
    endings = ENDINGS.get(unit, {})
    of_unit = f" of {unit}" if unit else ""
    with_ending = f", alone or with {', '.join(endings)} behind it" if len(endings) > 1 else ""
    return f"expected a number{of_unit}{with_ending}, such as 1200 or 1.2e3"
