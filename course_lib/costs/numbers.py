"""What a number has to be before a formula takes it: ValueError says what was given and what was expected."""


def above_zero(value: float, name: str) -> float:
    """`value`, if it is finite and above 0. ValueError otherwise, with `name`."""
    if not 0 < value < float("inf"):
        raise ValueError(f"{name}={value!r}: expected a finite number above 0")
    return value


def at_least(value: int, lowest: int, name: str) -> int:
    """`value` as an int, if it is a whole number of `lowest` or more. ValueError otherwise, with `name`."""
    if isinstance(value, bool) or value != int(value) or value < lowest:
        raise ValueError(f"{name}={value!r}: expected a whole number of {lowest} or more")
    return int(value)


def positive_share(value: float, name: str) -> float:
    """`value`, if it is above 0 and at most 1. ValueError otherwise, with `name`."""
    if not 0 < value <= 1:
        hint = ": is it a percentage?" if value > 1 else ""
        raise ValueError(f"{name}={value!r}: expected a share above 0 and at most 1{hint}")
    return value


def fraction(value: float, name: str) -> float:
    """`value`, if it is from 0 to 1. ValueError otherwise, with `name`."""
    if not 0 <= value <= 1:
        hint = ": is it a percentage?" if value > 1 else ""
        raise ValueError(f"{name}={value!r}: expected a share from 0 to 1{hint}")
    return value
