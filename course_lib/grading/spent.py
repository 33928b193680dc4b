"""What an answer used of its budgets, and the judgement on one trial that holds it.

    Spent("sent", 786432, 786432, on=" to the other node", rank=2)

is drawn as "sent at most 786.4 kB to the other node a rank, 786.4 kB allowed". `measured` always comes from the run
that is judged, never from the budget.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from course_lib.grading.compare import Sketch, number, unlike
from course_lib.pictures.units import human_bytes

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
    why: str = ""  # what probably took more than is allowed, where it can be read off this run
    limit: str = "{} allowed"  # or "par {}"
    slack: float = 0.0  # how far the count may be off; infinite: something else decides, this is shown only
    note: str = ""  # what is in the count besides
    claimed: bool = False  # counted in the reader's own processes, which could say anything
    decides: bool = False  # beyond it the answer is no answer: no points, in place of those for a right one

    @property
    def excess(self) -> str:
        """What was used where less is allowed."""
        who = self.who if self.rank is None else f"rank {self.rank}"
        has, will_do = quantities(self.measured, self.allowed, self.unit)
        return f"over budget: {who} {self.what} {has}{self.on}, where {will_do} will do"

    @property
    def complaint(self) -> str | None:
        """What is wrong where more was used than is allowed, None where not."""
        if self.measured <= self.allowed + self.slack:
            return None
        return f"{self.excess}: {self.why}" if self.why else self.excess

    @property
    def shown(self) -> bool:
        """Whether a report names a budget that is kept: one of a few bytes is not worth a line."""
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
    fault: str = ""  # "": right and within budget
    usage: Sequence[Spent] = ()
    opening: str = ""  # stands before the fault's cause where one is known
    over: Spent | None = None  # the budget that is exceeded, where the results are right
    sketch: Sketch = field(default_factory=lambda: Sketch("", ()))  # of what is at fault

    @property
    def right(self) -> bool:
        """Whether the results are right, whatever they cost."""
        return not self.fault or (self.over is not None and not self.over.decides)

    @property
    def cause(self) -> str | None:
        """What is at fault, with the trial's label; None where nothing is."""
        return f"{self.label}: {self.fault}" if self.fault else None

    def with_cause(self, cause: str) -> "Judgement":
        """The judgement with `cause` as what is at fault; "" where none is known."""
        joint = ": " if self.over else ""
        return replace(self, fault=f"{self.opening}{joint}{cause}") if cause else self

    def figures(self, believed: bool = True) -> str:
        """What was measured beside what is allowed, empty where nothing is worth showing.

        believed: whether figures that the reader's own processes claim are shown.
        """
        figures = "; ".join(str(each) for each in self.usage
                            if (each.shown or self.fault and each.measured) and (believed or not each.claimed))
        return f"{self.label}: {figures}" if figures else ""


def most(each: Sequence[float], allowed: Sequence[float] | None = None) -> int:
    """The rank that used most; with `allowed` for each rank, the one that is furthest beyond its own."""
    def beside(rank: int) -> tuple[float, float]:
        return each[rank] - (allowed[rank] if allowed else 0), each[rank]

    return max(range(len(each)), key=beside)


def highest(what: str, each: Sequence[float], allowed: float | Sequence[float], unit: str = "bytes", **more: Any
            ) -> Spent:
    """What the rank spent that used most; where each has its own budget, the one that came furthest beyond it.

    each: of every rank what it used; allowed: for all of them, or for each; more: the other fields of Spent.
    """
    budgets = allowed if isinstance(allowed, Sequence) else [allowed] * len(each)
    rank = most(each, budgets)
    return Spent(what, each[rank], budgets[rank], unit, rank=rank, **more)


def quantity(value: float, unit: str, short: bool = False) -> str:
    """`value` for a reader: 786.4 kB, 12.5 %, 3 calls; `short` leaves out what is counted."""
    if unit == "bytes":
        return human_bytes(value)
    if unit.startswith("exact "):
        return number(value, 10) if short else f"{number(value, 10)} {unit.removeprefix('exact ')}"
    if unit == "share":
        return f"{100 * value:.1f} %"
    plural = "" if value == 1 else "es" if unit.endswith("ch") else "s"
    return number(value) if short or not unit else f"{number(value)} {unit}{plural}"


def quantities(measured: float, allowed: float, unit: str, short: bool = True) -> tuple[str, str]:
    """Both for a reader, with as many digits as it takes to see that they differ; `short`: of the second one alone."""
    has, should = quantity(measured, unit), quantity(allowed, unit, short)
    if quantity(measured, unit, short=True) == (alike := quantity(allowed, unit, short=True)) and measured != allowed:
        factor, sign = {"bytes": (1, " B"), "share": (100, " %")}.get(unit, (1, ""))
        fine = [f"{each}{sign}" for each in unlike(factor * measured, factor * allowed)]
        has, should = (whole.replace(alike, each, 1) for whole, each in zip((has, should), fine))
    return has, should
