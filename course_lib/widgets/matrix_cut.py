"""MatrixCut: two matrices cut over t ranks, step by step: who holds which part of what, and what is sent."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from course_lib.pictures.scene import Scene, Sheet, bars, legend
from course_lib.widgets.base import Control, Explorable, OneOf, WholeNumber, chooser, require_step, slider

CUTS = ("columns", "rows")
ORDERS = [(first, second) for first in CUTS for second in CUTS]
RANKS = (1, 2, 4)
WIDER = 4  # an MLP's inside is so many times as wide as the model
WHOLE, PART, SUMMAND = "whole", "part", "summand"  # what a rank has of a matrix, apart from nothing
Held = dict[str, str]  # of x, A, h, B, y: which of these, the same on all ranks


@dataclass(frozen=True)
class ProductStep:
    """`said`: what happens, to matrix `at`. `held`: what a rank has afterwards. `sent`: by each, in numbers of x; `op`:
    how."""

    said: str
    held: Held
    at: str = "x"
    sent: Fraction = Fraction(0)
    op: str = ""


def product_steps(first: str, second: str, t: int) -> tuple[ProductStep, ...]:
    """y = GeLU(x A) B with A cut by `first` and B by `second`, from what all ranks hold to y on all ranks.

    A product by columns needs the whole input and makes a part; by rows it needs a part and makes a summand. GeLU
    takes whole or part. A message goes wherever one does not give what the next needs.
    """
    steps = [ProductStep("all ranks hold x; each holds its part of A and of B", {"x": WHOLE, "A": PART, "B": PART})]

    def add(said: str, sent: Fraction = Fraction(0), op: str = "", **held: str) -> None:
        steps.append(ProductStep(said, steps[-1].held | held, next(iter(held), "h"), sent, op))  # GeLU makes h of h

    if first == "rows":
        add("each takes the features of x that its rows of A want", x=PART)
    add(f"x A by {first}: " + ("each has its columns of h" if first == "columns" else "each has a summand of h"),
        h=PART if first == "columns" else SUMMAND)
    if first == "rows":
        add("GeLU of a summand is no summand of GeLU: first all-reduce h", Fraction(2 * (t - 1) * WIDER, t),
            "all-reduce", h=WHOLE)
    elif second == "columns":
        add("B by columns wants the whole of h: all-gather it", Fraction((t - 1) * WIDER, t), "all-gather", h=WHOLE)
    add(f"GeLU of {'each part by itself' if steps[-1].held['h'] == PART else 'the whole h, on every rank'}")
    if second == "rows" and steps[-1].held["h"] == WHOLE:
        add("each takes the features of h that its rows of B want", h=PART)
    add(f"h B by {second}: " + ("each has its columns of y" if second == "columns" else "each has a summand of y"),
        y=PART if second == "columns" else SUMMAND)
    if second == "columns":
        add("all-gather y", Fraction(t - 1, t), "all-gather", y=WHOLE)
    else:
        add("all-reduce y", Fraction(2 * (t - 1), t), "all-reduce", y=WHOLE)
    return tuple(steps)


def sent_in_all(first: str, second: str, t: int) -> Fraction:
    """Numbers that each rank sends, over the numbers of x."""
    return sum((step.sent for step in product_steps(first, second, t)), Fraction(0))


def number_of_steps(first: str, second: str) -> int:
    return len(product_steps(first, second, 2)) - 1


ROLE = {WHOLE: "activations", PART: "activations", SUMMAND: "late"}
PLACES = {"x": (96, 60, 26), "A": (190, 120, 60), "h": (344, 120, 26), "B": (500, 60, 60), "y": (620, 60, 26)}
SIGNS = {"times A": (173, "×"), "is h": (327, "="), "times B": (482, "×"), "is y": (590, "=")}
TOP, ROW = 34, 76


def scene_of(first: str, second: str, t: int, step: int) -> Scene:
    """A row for each rank: x A = h, GeLU, h B = y, with what it holds filled in."""
    steps, sheet = product_steps(first, second, t), Sheet()
    now = steps[step]
    for name, (x, wide, _) in PLACES.items():
        sheet.text(f"{name} is called", "label", x + wide / 2, TOP - 16, name, "middle")
    sheet.line("at work", "bound", PLACES[now.at][0], TOP - 5, sum(PLACES[now.at][:2]), TOP - 5)
    for rank in range(t):
        add_rank(sheet, rank, t, (first, second), now, TOP + rank * ROW)
    bottom = TOP + t * ROW + 8
    legend(sheet, 96, bottom, [("parameters", "weights"), ("activations", "finished numbers"),
                               ("late", "summands, to be added up"), ("room", "not here")])
    sheet.text("compared", "label", 96, bottom + 30, "What each rank sends on the way forward, in numbers of x")
    compared = [(" then ".join(order), float(sent_in_all(*order, t)), ratio(sent_in_all(*order, t)),
                 order == (first, second)) for order in ORDERS]
    bars(sheet, 230, 780, bottom + 42, 19, compared)
    done = sum((each.sent for each in steps[:step + 1]), Fraction(0))
    collectives = sum(1 for each in steps if each.op)
    in_all = ratio(sent_in_all(first, second, t))
    finding = f"{first.capitalize()}, then {second}: {count(collectives)} forward, each rank sends {in_all}"
    detail = f"step {step} of {len(steps) - 1}: {now.said}; sent so far: {ratio(done)}"
    asked = f"y = GeLU(x A) B on {t} rank{'s' * (t > 1)}, A by {first}, B by {second}"
    return sheet.scene("MatrixCut", f"{first} {second} t={t} step={step}", asked, finding, detail,
                       bottom + 42 + 19 * len(ORDERS) + 8, f"Each rank holds {', '.join(held_words(now.held))}.")


def add_rank(sheet: Sheet, rank: int, t: int, cuts: tuple[str, str], now: ProductStep, y: float) -> None:
    middle = y + 30
    sheet.text(f"rank {rank}", "label", 84, middle, f"rank {rank}", "end")
    for key, (x, sign) in SIGNS.items():
        sheet.text(f"rank {rank} {key}", "label", x, middle, sign, "middle")
    for name, (x, wide, tall) in PLACES.items():
        top = middle - tall / 2
        sheet.rect(f"rank {rank} {name}", "room", x, top, wide, tall)
        held = now.held.get(name)
        if held is None:
            continue
        by_rows = name in "AB" and cuts["AB".index(name)] == "rows"
        left, width, height = x, wide, tall
        if held == PART:
            width, height = (wide, tall / t) if by_rows else (wide / t, tall)
            left, top = (x, top + rank * height) if by_rows else (x + rank * width, top)
        role = "parameters" if name in "AB" else ROLE[held]
        sheet.rect(f"rank {rank} {name} held", role, left, top, width, height, hint=f"rank {rank}: {held} of {name}")
    if now.op:
        sheet.text(f"rank {rank} takes part", "strong", 700, middle - 9, f"{now.op}:")
        sheet.text(f"rank {rank} sends", "strong", 700, middle + 9, f"sends {ratio(now.sent)}")


def held_words(held: Held) -> list[str]:
    return [f"{name} whole" if kind == WHOLE else f"a {kind} of {name}" for name, kind in held.items()]


def ratio(sent: Fraction) -> str:
    return f"{float(sent):g} times x"


def count(collectives: int) -> str:
    return f"{collectives} collective{'s' * (collectives != 1)}"


class MatrixCut(Explorable, draw=scene_of):
    """y = GeLU(x A) B on `t` ranks, A and B each cut by "columns" or by "rows", after so many steps."""

    first = OneOf("columns", CUTS)
    second = OneOf("rows", CUTS)
    t = OneOf(4, RANKS)
    step = WholeNumber(0, 0)

    @classmethod
    def check_settings(cls, settings: dict[str, Any]) -> dict[str, Any]:
        require_step(settings["step"], number_of_steps(settings["first"], settings["second"]))
        return settings

    @classmethod
    def list_controls(cls, settings: dict[str, Any]) -> list[Control]:
        first, second, step = settings["first"], settings["second"], settings["step"]
        return [chooser("A by", "first", CUTS,
                        change=lambda cut: {"first": cut, "step": min(step, number_of_steps(cut, second))}),
                chooser("B by", "second", CUTS,
                        change=lambda cut: {"second": cut, "step": min(step, number_of_steps(first, cut))}),
                chooser("ranks", "t", RANKS),
                slider("step", "step", range(number_of_steps(first, second) + 1), step)]
