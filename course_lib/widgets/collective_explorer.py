"""CollectiveExplorer: every collective of chapter 2 as a grid of ranks and chunks.

Who holds what, who is busy, and how many steps does it take?
"""

from __future__ import annotations

from typing import Any

from course_lib.collectives.plan import Plan, plan, times
from course_lib.collectives.steps import MESSAGES, NUM_NODES, Message
from course_lib.pictures.palette import RANK_COLOURS, ink_on
from course_lib.pictures.scene import Scene, Sheet
from course_lib.plots.cell_style import CellStyle, key_to_cells
from course_lib.widgets.base import (
    BadParameter,
    Choice,
    Control,
    Setting,
    SteppedExplorable,
    WholeNumber,
    player,
    slider,
)
from course_lib.widgets.ring import MAX_RANKS, MIN_RANKS, shares_in

LEFT, END, TOP = 196, 660, 58  # of the cells
ARCS, GAP = 116, 16  # where arrows begin; between what is sent and what is received in an all-to-all
DOT = 10


def plan_of(settings: dict[str, Any]) -> Plan:
    """BadParameter where there is no such plan."""
    try:
        return plan(settings["op"], settings["algorithm"], settings["num_ranks"])
    except ValueError as error:
        raise BadParameter(str(error)) from None


def first_algorithm(op: Any) -> str | None:
    return next((algorithm for known, algorithm in MESSAGES if known == op), None)


def sizes(algorithm: str) -> list[int]:
    """Numbers of ranks."""
    return [n for n in range(MIN_RANKS, MAX_RANKS + 1) if algorithm != "hierarchical" or n % NUM_NODES == 0]


def label(op: str, algorithm: str) -> str:
    """`all-reduce, halving-doubling`."""
    through = {"naive": "through rank 0", "hierarchical": f"hierarchical, {NUM_NODES} nodes"}
    return f"{op.replace('_', '-')}, {through.get(algorithm, algorithm.replace('_', '-'))}"


def scene_of(step: int, **settings: Any) -> Scene:
    """A row of places for each rank; left of them the messages of this step, right what each rank has moved so far."""
    sheet, shown = Sheet(), plan_of(settings)
    adds = any(message.kind == "add" for each in shown.steps for message in each.messages)
    messages = shown.steps[step - 1].messages if step else ()
    row = max(40, 4 + 6 * shown.num_ranks) if adds else 36
    for message in messages:
        add_message(sheet, message, row)
    right = add_cells(sheet, shown, step, row, adds)
    add_bars(sheet, shown, step, row, right + 12)
    finding, name = shown.finding(), label(shown.op, shown.algorithm)
    bottom = TOP + shown.num_ranks * row
    key = f"{key_to_cells(CellStyle(shown.num_ranks, adds))}; framed = has just arrived"
    sheet.text("key", "quiet", 8, bottom + 66, key)
    sheet.text("in all", "small", 8, bottom + 46, shown.detail()[0].upper() + shown.detail()[1:])
    asked, headline = f"{name} on {shown.num_ranks} ranks", f"In all, {finding}"
    detail = f"Step {step} of {shown.num_steps}: {describe_step(shown, step)}"
    sentence = f"CollectiveExplorer, {asked}: {finding}; {shown.detail()}; shown after step {step}"
    return sheet.scene("CollectiveExplorer", f"{shown.op} {shown.algorithm} n={shown.num_ranks} step={step}", asked,
                       headline, detail, bottom + 80, sentence=sentence)


def add_message(sheet: Sheet, message: Message, row: float) -> None:
    """From row to row at the left of the names; who is further away bends further out."""
    far = abs(message.src - message.dst)
    start, end = TOP + (message.src + 0.5) * row - 5, TOP + (message.dst + 0.5) * row + 5
    out = round(ARCS - 1.3 * (ARCS - 8) * min(1, 0.35 + (far - 1) / 8))
    key = f"{message.src} to {message.dst}"
    sheet.curve(key, "arrow", ARCS, start, out, start, out, end, ARCS, end)
    x, y = (ARCS + 3 * out) / 4, (start + end) / 2  # of its middle
    sheet.rect(f"{key} sends", f"rank {message.src}", x - DOT / 2, y - DOT / 2, DOT, DOT, along=key)


def add_cells(sheet: Sheet, shown: Plan, step: int, row: float, adds: bool) -> float:
    """Returns where they end. In an all-to-all the places of what is received stand behind those of what is sent."""
    n, inputs, (first, *_) = shown.num_ranks, shown.num_chunks, shown.states[step].cells
    gap = GAP if len(first) > inputs else 0
    wide = min(74, (END - LEFT - gap) // len(first))
    lefts = [LEFT + place * wide + (gap if place >= inputs else 0) for place in range(len(first))]
    arrived = {(message.dst, into) for message in (shown.steps[step - 1].messages if step else ())
               for into in message.into}
    for place, x in enumerate(lefts):
        words = f"{place % n}" if gap or wide <= 52 else f"chunk {place}"
        sheet.text(f"place {place}", "quiet", x + wide / 2, TOP - 13, words, "middle")
    heads = {"to send to rank": 0, "received from rank": inputs} if gap else {"chunk": 0} if wide <= 52 else {}
    for words, place in heads.items():
        sheet.text(f"places {words}", "quiet", lefts[place] + wide * inputs / 2, TOP - 31, words, "middle")
    for rank, cells in enumerate(shown.states[step].cells):
        y = TOP + rank * row
        sheet.rect(f"rank {rank}", f"rank {rank}", ARCS + 8, y + row / 2 - 6, 12, 12)
        sheet.text(f"rank {rank} is", "strong", LEFT - 8, y + row / 2, f"rank {rank}", "end")
        for place, cell in enumerate(cells):
            key, frame = f"{rank}[{place}]", (lefts[place] + 2, y + 3, wide - 4, row - 6)
            new = (rank, place) in arrived
            if adds and cell:
                sheet.rect(key, "arrived" if new else "cell", *frame, shares=shares_in(cell, n), waits=True)
            else:
                role = f"rank {cell[0].rank}{' arrived' * new}" if cell else "empty"
                sheet.rect(key, role, *frame, waits=True)
            if cell and not adds:
                ink = "on light" if ink_on(RANK_COLOURS[cell[0].rank]) != "white" else "on dark"
                sheet.text(f"{key} is", ink, frame[0] + frame[2] / 2, y + row / 2, f"{cell[0].chunk}", "middle",
                           waits=True)
    return lefts[-1] + wide


def add_bars(sheet: Sheet, shown: Plan, step: int, row: float, left: float) -> None:
    """Two bars for each rank, what it has sent and received so far, against the least that the busiest has to move."""
    left += 56  # behind the amounts
    scale, bottom = (850 - left) / float(max(shown.busiest, shown.bound)), TOP + shown.num_ranks * row
    bars = {"sent": (shown.sent_by_rank(step), "present", "too much", 0.14),
            "received": (shown.received_by_rank(step), "other", "too much of other", 0.52)}
    for number, (words, (amounts, role, over, offset)) in enumerate(bars.items()):
        sheet.rect(f"legend {words}", role, left + 56 * number, TOP - 18, 11, 11)
        sheet.text(f"legend {words} is", "small", left + 16 + 56 * number, TOP - 12, words)
        for rank, amount in enumerate(amounts):
            too_much, y, tall = amount > shown.bound, TOP + rank * row + round(offset * row), round(0.34 * row)
            sheet.rect(f"{rank} {words}", over if too_much else role, left, y, amount * scale, tall, waits=True)
            sheet.text(f"{rank} {words} is", "strong" if too_much else "small", left - 6, y + tall / 2,
                       times(amount), "end", waits=True)
    bound = left + float(shown.bound) * scale
    sheet.line("bound", "bound", bound, TOP - 2, bound, bottom + 4)
    sheet.text("bound is", "small", bound, bottom + 13, f"bound {times(shown.bound)}", "middle")
    sheet.text("bars are", "quiet", left - 56, bottom + 31, "of the buffer, by each rank so far")


def describe_step(shown: Plan, step: int) -> str:
    if step == 0:
        return "nothing has been sent yet"
    done = shown.steps[step - 1]
    num = len(done.messages)
    example = done.messages[0]
    many = f"{num} messages at once, such as" if num > 1 else "one message, everybody else waits:"
    return f"{done.phase}, {many} {describe_message(shown, example)}"


def describe_message(shown: Plan, message: Message) -> str:
    """`rank 0 sends chunk 3 to rank 1, which adds it`."""
    num = len(message.chunks)
    if num == shown.num_chunks and num > 1:
        what = "the whole buffer"
    elif num == 1:
        what = f"chunk {message.chunks[0]}"
    else:
        what = f"chunks {message.chunks[0]} to {message.chunks[-1]}"
    added = f", which adds {'it' if num in (1, shown.num_chunks) else 'them'}" if message.kind == "add" else ""
    return f"rank {message.src} sends {what} to rank {message.dst}{added}"


class CollectiveExplorer(SteppedExplorable, draw=scene_of):
    """What every rank holds after `step` steps of a collective on `num_ranks` ranks (2 to 8), and who has sent what.

    `op` and `algorithm` have the names of collectives.collective_time, and "all_reduce" also has "hierarchical" on two
    nodes of an even number of ranks. Without an algorithm it is the first that the op has. To change several
    parameters at once, so that they fit together: `with explorer.hold_trait_notifications():`.
    """

    op = Setting("all_reduce")
    algorithm = Setting(None)
    num_ranks = WholeNumber(4, MIN_RANKS, MAX_RANKS)

    def __init__(self, op: str = "all_reduce", algorithm: str | None = None, num_ranks: int = 4, step: int = 1,
                 **unknown: Any) -> None:
        algorithm = first_algorithm(op) if algorithm is None else algorithm
        super().__init__(op=op, algorithm=algorithm, num_ranks=num_ranks, step=step, **unknown)

    @classmethod
    def check_settings(cls, settings: dict[str, Any]) -> dict[str, Any]:
        if settings["algorithm"] is None:
            settings = settings | {"algorithm": first_algorithm(settings["op"])}
        return super().check_settings(settings)

    @classmethod
    def last_step(cls, settings: dict[str, Any]) -> int:
        return plan_of(settings).num_steps

    @classmethod
    def list_controls(cls, settings: dict[str, Any]) -> list[Control]:
        num, there = settings["num_ranks"], sizes(settings["algorithm"])
        collectives = tuple(Choice(label(op, algorithm), {
            "op": op, "algorithm": algorithm, "num_ranks": min(sizes(algorithm), key=lambda n: abs(n - num))})
            for op, algorithm in MESSAGES)
        return [Control("chooser", "collective", ("op", "algorithm"), collectives),
                slider("ranks", "num_ranks", there, num), player(cls.last_step(settings))]
