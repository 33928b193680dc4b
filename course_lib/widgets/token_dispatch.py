"""TokenDispatch: tokens of four ranks in the queues of eight experts: who waits for whom, who is turned away."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from course_lib.pictures.palette import RANK_COLOURS, ink_on
from course_lib.pictures.scene import Scene, Sheet, bars, legend
from course_lib.pictures.units import human_bytes
from course_lib.widgets.base import Control, Explorable, OneOf, WholeNumber, chooser, slider

RANKS, EXPERTS, TOKENS = 4, 8, 16  # TOKENS on each rank; expert e is on rank e // 2
SKEWS = (0.0, 0.5, 1.0, 1.5, 2.0)
CAPACITIES = (None, 2.0, 1.5, 1.0)
STEPS = range(0, 31, 3)
MOST_STEPS = 200
RATE = 0.1  # by which a step of balancing moves an expert's bias
POPULARITY = (2, 5, 3, 0, 7, 4, 1, 6)  # the experts, most wanted first
ROW_BYTES = 2 * 4096  # of a token, D = 4096 in 16 bits


@dataclass(frozen=True)
class Dispatched:
    """All that there is to see. `choices[rank][token][slot]`: the expert; `kept` alike: whether there was room."""

    skew: float
    k: int
    capacity_factor: float | None
    steps: int
    choices: tuple[tuple[tuple[int, ...], ...], ...]
    kept: tuple[tuple[tuple[bool, ...], ...], ...]

    @cached_property
    def rows(self) -> list[tuple[int, int, int, int]]:
        """(expert, rank, token, slot) of what is kept, in the order in which it arrives at the experts."""
        return sorted((expert, rank, token, slot) for rank, of_rank in enumerate(self.choices)
                      for token, experts in enumerate(of_rank) for slot, expert in enumerate(experts)
                      if self.kept[rank][token][slot])

    @cached_property
    def load(self) -> list[int]:
        """Rows that each expert computes."""
        return [sum(expert == e for expert, *_ in self.rows) for e in range(EXPERTS)]

    @cached_property
    def work(self) -> list[int]:
        """Rows that each rank computes."""
        return [sum(self.load[rank * EXPERTS // RANKS:(rank + 1) * EXPERTS // RANKS]) for rank in range(RANKS)]

    @property
    def asked_for(self) -> int:
        return RANKS * TOKENS * self.k

    @property
    def dropped(self) -> int:
        return self.asked_for - len(self.rows)

    @property
    def rows_sent(self) -> int:
        """Over wires, one way: what stays on its rank is not sent."""
        return sum(home(expert) != rank for expert, rank, *_ in self.rows)

    @property
    def slowest(self) -> float:
        """The busiest rank's rows over those of even work without drops."""
        return max(self.work) * RANKS / self.asked_for


def home(expert: int) -> int:
    """The rank that has it."""
    return expert * RANKS // EXPERTS


@cache
def scores(skew: float) -> tuple[tuple[float, ...], ...]:
    """One row for each token of all ranks. The best k of such scores are k draws without putting back, by popularity
    1 / place^skew (Gumbel 1954)."""
    draw = random.Random(8)
    wanted = {expert: -skew * math.log(1 + place) for place, expert in enumerate(POPULARITY)}
    return tuple(tuple(wanted[expert] - math.log(-math.log(draw.random())) for expert in range(EXPERTS))
                 for _ in range(RANKS * TOKENS))


def choose_experts(skew: float, k: int, bias: list[float]) -> list[tuple[int, ...]]:
    """The k experts of each token, best first."""
    return [tuple(sorted(range(EXPERTS), key=lambda e: -row[e] - bias[e])[:k]) for row in scores(skew)]


@cache
def balance_choices(skew: float, k: int, steps: int) -> tuple[tuple[int, ...], ...]:
    """Choices after so many steps of a bias that goes down for experts with more than the mean, up for others."""
    bias, mean = [0.0] * EXPERTS, RANKS * TOKENS * k / EXPERTS
    for _ in range(steps):
        choices = choose_experts(skew, k, bias)
        load = [sum(e in experts for experts in choices) for e in range(EXPERTS)]
        bias = [b + RATE * ((mean > n) - (mean < n)) for b, n in zip(bias, load)]
    return tuple(choose_experts(skew, k, bias))


def capacity(k: int, factor: float | None) -> int | None:
    """Rows that one rank may send to one expert; None: no limit."""
    return None if factor is None else math.ceil(factor * k * TOKENS / EXPERTS)


@cache
def dispatch(skew: float, k: int, capacity_factor: float | None, balancing: int) -> Dispatched:
    """What the widget shows for these parameters."""
    flat, limit = balance_choices(skew, k, balancing), capacity(k, capacity_factor)
    choices = tuple(flat[rank * TOKENS:(rank + 1) * TOKENS] for rank in range(RANKS))
    kept = [[[True] * k for _ in range(TOKENS)] for _ in range(RANKS)]
    for rank, of_rank in enumerate(choices):
        taken = [0] * EXPERTS
        for slot in range(k):  # every token's first choice comes before anybody's second
            for token, experts in enumerate(of_rank):
                kept[rank][token][slot] = limit is None or taken[experts[slot]] < limit
                taken[experts[slot]] += 1
    return Dispatched(skew, k, capacity_factor, balancing, choices,
                      tuple(tuple(map(tuple, of_rank)) for of_rank in kept))


LEFT, TOP, BAND = 66, 42, 66
TOKEN, QUEUE_LEFT, PLACE, LANE = 19, 486, 10, 26  # a token at home; a place in a queue, a queue's height
LONGEST = 28  # columns of a queue


def scene_of(**settings: Any) -> Scene:
    """Left the tokens at home with the experts they ask for, right the experts' queues; below, other capacities."""
    sheet, shown = Sheet(), dispatch(**settings)
    sheet.text("home is", "label", LEFT, 14, "At home: the expert that each token asks for")
    sheet.text("queues are", "label", QUEUE_LEFT - 74, 14, "After dispatch: the experts and their queues")
    for rank in range(RANKS):
        add_home(sheet, shown, rank, TOP + rank * BAND)
        add_expert_rank(sheet, shown, rank, TOP + rank * BAND)
    add_queues(sheet, shown)
    bottom = TOP + RANKS * BAND
    entries = [*((f"rank {rank}", f"of rank {rank}") for rank in range(RANKS)), ("wrong", "dropped")]
    legend(sheet, LEFT, bottom + 8, entries)
    sheet.text("compared", "label", LEFT, bottom + 40, "The busiest rank, over even work without drops")
    others = [dispatch(shown.skew, shown.k, factor, shown.steps) for factor in CAPACITIES]
    rows = [(capacity_words(other.capacity_factor), other.slowest, f"{other.slowest:.2f}, {other.dropped} dropped",
             other.capacity_factor == shown.capacity_factor) for other in others]
    bars(sheet, 190, 640, bottom + 52, 20, rows)
    finding, detail = texts(shown)
    asked = (f"popularity 1/place^{shown.skew:g}, k = {shown.k}, {capacity_words(shown.capacity_factor)}, "
             f"{shown.steps} steps of balancing")
    key = f"skew={shown.skew:g} k={shown.k} capacity={shown.capacity_factor} steps={shown.steps}"
    return sheet.scene("TokenDispatch", key, asked, finding, detail, bottom + 52 + 20 * len(rows) + 8,
                       f"Rows of the experts: {', '.join(map(str, shown.load))}")


def add_home(sheet: Sheet, shown: Dispatched, rank: int, y: float) -> None:
    sheet.text(f"rank {rank}", "label", LEFT - 9, y + shown.k * TOKEN / 2, f"rank {rank}", "end")
    ink = "on light" if ink_on(RANK_COLOURS[rank]) != "white" else "on dark"
    for token, experts in enumerate(shown.choices[rank]):
        for slot, expert in enumerate(experts):
            kept, name = shown.kept[rank][token][slot], f"token {rank}.{token} choice {slot}"
            at = LEFT + token * TOKEN, y + slot * TOKEN
            said = "" if kept else ", which has no room left"
            sheet.rect(name, f"rank {rank}" if kept else "wrong", *at, TOKEN - 2, TOKEN - 2,
                       hint=f"token {token} of rank {rank} asks for expert {expert}{said}")
            sheet.inside(f"{name} is", ink if kept else "alarm", *at, TOKEN - 2, TOKEN - 2, f"{expert}")


def add_expert_rank(sheet: Sheet, shown: Dispatched, rank: int, y: float) -> None:
    """The names of its experts, where their queues may end, and what it computes."""
    limit = capacity(shown.k, shown.capacity_factor)
    for number in range(EXPERTS // RANKS):
        expert, top = rank * EXPERTS // RANKS + number, y + number * LANE
        sheet.text(f"expert {expert}", "small", QUEUE_LEFT - 9, top + PLACE, f"expert {expert}", "end")
        sheet.rect(f"expert {expert} has room", "spare", QUEUE_LEFT, top, LONGEST * PLACE, 2 * PLACE)
        if limit is not None:
            x = QUEUE_LEFT + PLACE * RANKS * limit / 2
            sheet.line(f"expert {expert} is full", "bound", x, top - 2, x, top + 2 * PLACE + 2)
    busiest = shown.work[rank] == max(shown.work) and len(set(shown.work)) > 1
    sheet.text(f"rank {rank} computes", "finding" if busiest else "small", QUEUE_LEFT + (LONGEST + 1) * PLACE,
               y + LANE - 3, f"rank {rank}: {shown.work[rank]} rows")


def add_queues(sheet: Sheet, shown: Dispatched) -> None:
    """Behind one another as they arrive, in two rows; the colour says whose they are."""
    place = [0] * EXPERTS
    for expert, rank, token, slot in shown.rows:
        column, row = divmod(place[expert], 2)
        place[expert] += 1
        y = TOP + home(expert) * BAND + expert % (EXPERTS // RANKS) * LANE + row * PLACE
        sheet.rect(f"token {rank}.{token} choice {slot} waits", f"rank {rank}", QUEUE_LEFT + column * PLACE, y, PLACE,
                   PLACE, hint=f"token {token} of rank {rank} at expert {expert}")


def capacity_words(factor: float | None) -> str:
    return "no limit" if factor is None else f"factor {factor:g}"


def texts(shown: Dispatched) -> tuple[str, str]:
    """Headline and detail."""
    dropped = f"{shown.dropped} of {shown.asked_for} choices dropped" if shown.dropped else "nothing dropped"
    finding = f"The busiest rank computes {shown.slowest:.2f} times even work; {dropped}"
    even = 2 * shown.asked_for * (RANKS - 1) // RANKS
    return finding, (f"there and back {2 * shown.rows_sent} rows cross a wire, "
                     f"{human_bytes(2 * shown.rows_sent * ROW_BYTES)} at D = 4096 in 16 bits; {even} rows if even")


class TokenDispatch(Explorable, draw=scene_of):
    """64 tokens on four ranks, `k` of eight experts for each, by popularity 1 / place^`skew`.

    `capacity_factor`: a rank sends an expert at most this times k 16/8 rows, None without limit. `balancing`: steps of
    a bias that makes busy experts less wanted.
    """

    skew = OneOf(1.0, SKEWS)
    k = OneOf(1, (1, 2))
    capacity_factor = OneOf(None, CAPACITIES)
    balancing = WholeNumber(0, 0, MOST_STEPS)

    @classmethod
    def list_controls(cls, settings: dict[str, Any]) -> list[Control]:
        return [slider("skew", "skew", SKEWS, settings["skew"], "{:g}".format),
                chooser("experts a token, k", "k", (1, 2)),
                chooser("capacity", "capacity_factor", CAPACITIES, capacity_words),
                slider("steps of balancing", "balancing", STEPS, settings["balancing"])]
