"""What an answer used of its budgets, and the judgement on one trial that holds it.

    Spent("sent", 786432, 786432, on=" to the other node", rank=2)

is drawn as "sent at most 768 KiB to the other node a rank, 768 KiB allowed". `measured` always comes from the run that
is judged, never from the budget.
"""

from collections.abc import Sequence
from dataclasses import dataclass

SMALLEST_SHOWN = 16 * 1024  # bytes; where less is allowed, the budget is held, but shown only of answers that fail


@dataclass(frozen=True)
class Spent:
    """One budget and what was used of it, by the rank that came furthest where there are several."""

    what: str  # a verb: "sent", "holds"
    measured: float
    allowed: float
    unit: str = "bytes"  # or "share", "exact bytes" with every digit, or what is counted: "call"
    on: str = ""  # behind the measured figure: " to the other node"
    rank: int | None = None  # whose figure it is, None where it belongs to all together
    who: str = "it"  # begins the complaint where there is no rank
    why: str = ""  # what probably took more than is allowed
    limit: str = "{} allowed"  # or "par {}"
    slack: float = 0.0  # how far the count may be off; infinite: something else decides, this is shown only
    note: str = ""  # what is in the count besides
    claimed: bool = False  # counted in the reader's own processes, which could say anything

    @property
    def complaint(self) -> str | None:
        """What is wrong where more was used than is allowed, None where not."""
        if self.measured <= self.allowed + self.slack:
            return None
        who = self.who if self.rank is None else f"rank {self.rank}"
        said = (f"over budget: {who} {self.what} {quantity(self.measured, self.unit)}{self.on}, where "
                f"{quantity(self.allowed, self.unit, short=True)} will do")
        return f"{said}: {self.why}" if self.why else said

    @property
    def shown(self) -> bool:
        return self.unit != "bytes" or self.allowed >= SMALLEST_SHOWN

    def __str__(self) -> str:
        at_most, each = ("", "") if self.rank is None else (" at most", " a rank")
        limit = quantity(self.allowed, self.unit, short=True)
        return (f"{self.what}{at_most} {quantity(self.measured, self.unit)}{self.on}{each}, {self.limit.format(limit)}"
                + (f" ({self.note})" if self.note else ""))


@dataclass(frozen=True)
class Judgement:
    """On the answers of one trial: why they are wrong or cost too much, and what the run spent."""

    label: str
    cause: str | None = None  # None: right and within budget
    spent: Sequence[Spent] = ()

    def figures(self, believed: bool = True) -> str:
        """What was measured beside what is allowed, empty where nothing is worth showing.

        believed: whether figures that the reader's own processes claim are shown.
        """
        said = "; ".join(str(each) for each in self.spent
                         if (each.shown or self.cause and each.measured) and (believed or not each.claimed))
        return f"{self.label}: {said}" if said else ""


def most(each: Sequence[float], allowed: Sequence[float] | None = None) -> int:
    """The rank that used most, beside what it may where that differs."""
    def beside(rank: int) -> tuple[float, float]:
        return each[rank] - (allowed[rank] if allowed else 0), each[rank]

    return max(range(len(each)), key=beside)


def quantity(value: float, unit: str, short: bool = False) -> str:
    """`value` for a reader: 768 KiB, 12.5 %, 3 calls; `short` leaves out what is counted."""
    if unit == "bytes":
        return amount(value)
    if unit.startswith("exact "):
        return f"{value:,.10g}" if short else f"{value:,.10g} {unit.removeprefix('exact ')}"
    if unit == "share":
        return f"{100 * value:.1f} %"
    plural = "" if value == 1 else "es" if unit.endswith("ch") else "s"
    return f"{value:.6g}" if short or not unit else f"{value:.6g} {unit}{plural}"


def amount(num_bytes: float) -> str:
    """Bytes for a reader: 24 bytes, 768 KiB, 1.5 MiB."""
    for size, unit in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if num_bytes >= size:
            return f"{num_bytes / size:.4g} {unit}"
    return f"{num_bytes:g} bytes"
