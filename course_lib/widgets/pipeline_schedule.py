"""PipelineSchedule: choose a schedule or place its actions by hand. Who waits, and what does it cost in memory?"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from math import lcm
from typing import Any

from course_lib.pictures.palette import LIGHTEST
from course_lib.pictures.scene import Scene, Sheet, axis, bars, legend, round_ticks, width_of
from course_lib.pipeline_parallel import SCHEDULES, Action, Finding, Schedule, Simulation, findings
from course_lib.pipeline_parallel.simulate import Costs, give_times, write_count
from course_lib.pipeline_parallel.validate import walk
from course_lib.widgets.base import BadParameter, Choice, Control, Explorable, OneOf, Setting, WholeNumber, slider

BY_HAND = "by hand"
MAX_RANKS, MAX_MICROBATCHES, MAX_CHUNKS = 8, 32, 4
SLIDER_MICROBATCHES = (*range(1, 17), 20, 24, 32)
SLOWLY = 2  # how much longer a slow rank takes
RUNS, WAITS, WRONG = range(3)  # what becomes of an action
ROLES = {"F": "forward", "B": "backward", "I": "backward", "W": "weights"}
NAMES = {"F": "forward F", "B": "whole backward B", "I": "backward for input I", "W": "backward for weights W"}
LEFT, RIGHT, TOP, GAP = 66, 800, 8, 3
LEAST, MOST, ROOM = 25, 34, 160  # of a lane, and of all where they are few
BAR_LEFT, BAR_RIGHT, BAR_ROW = 140, 730, 19
Compared = list[tuple[str, float, str, bool]]
KEYS = ("arrow keys move, F B I W place the next micro-batch, Backspace takes one away, Delete all; "
        "digits choose a chunk")


def is_chunked(order: str) -> bool:
    """Whether `v`, the chunks of a rank, is the reader's choice: for interleaving."""
    return order != BY_HAND and not SCHEDULES[order].chunks


def schedule_of(settings: dict[str, Any]) -> Schedule:
    order, p, m, given = settings["order"], settings["p"], settings["m"], settings["stages"]
    if order != BY_HAND:
        return SCHEDULES[order](p, m, settings["v"])
    lanes = [[action_of(text) for text in lane] for lane in settings["placed"]][:p]
    lanes += [[] for _ in range(p - len(lanes))]
    stages = tuple(map(tuple, given)) if len(given) == p else tuple((rank,) for rank in range(p))
    return Schedule(BY_HAND, m, stages, tuple(
        tuple(action for action in lane if action.microbatch < m and action.chunk < len(chunks))
        for lane, chunks in zip(lanes, stages)))


def scene_of(**settings: Any) -> Scene:
    order, p, m, v, slow = (settings[name] for name in ("order", "p", "m", "v", "slow"))
    by_hand = order == BY_HAND
    schedule = schedule_of(settings)
    found = findings(schedule, finished=False) if by_hand else []
    done = not by_hand or not (found or findings(schedule))
    simulated = with_times(schedule, slow)
    compared = comparison(settings, simulated if by_hand and done else None)
    headline = finding(simulated, found, by_hand, done)
    detail = explanation(simulated, slow) if done else still_missing(schedule, found)
    sheet, height = draw_schedule(simulated, found, compared, KEYS if by_hand else "numbers are micro-batches")
    name = f"{order}, v = {v}" if is_chunked(order) else order
    size = f"{p} rank{'s' * (p > 1)}, {m} micro-batch{'es' * (m > 1)}"
    question = f"{name}, {size}{'' if slow is None else f', rank {slow} slow'}"
    peaks = ", ".join(f"rank {rank} {write_count(peak)}" for rank, peak in enumerate(simulated.peak_activations))
    others = "; ".join(f"{name} {words}" for name, _, words, _ in compared)
    return sheet.scene("PipelineSchedule", key_of(settings, schedule), question, headline, detail, height,
                       f"Most in flight: {peaks}. All schedules: {others}",
                       f"PipelineSchedule, {question}: {headline}. {detail}".strip())


def draw_schedule(simulated: Simulation, found: list[Finding], compared: Compared, note: str) -> tuple[Sheet, float]:
    """The marks and how high they stand."""
    schedule, sheet = simulated.schedule, Sheet()
    tall = max(LEAST, min(MOST, ROOM / schedule.num_ranks))
    rows = [row_of(simulated, rank, found) for rank in range(schedule.num_ranks)]
    end = max((box[1] for row in rows for box in row), default=0) or 1.0
    for rank, row in enumerate(rows):
        add_lane(sheet, simulated, rank, row, TOP + rank * tall, tall - GAP, (RIGHT - LEFT) / end)
    y = TOP + schedule.num_ranks * tall + 4
    axis(sheet, LEFT, RIGHT, y, end, [(at, f"{at:g}") for at in round_ticks(end)],
         "time; 1 is forward through a rank's layers for one micro-batch")
    add_legend(sheet, rows, y + 58, max(map(len, schedule.stages)) > 1)
    sheet.text("note", "quiet", LEFT, y + 78, note)
    sheet.text("chart", "label", LEFT, y + 106, f"Idle share and memory of all schedules, {schedule.num_ranks} ranks, "
               f"{schedule.num_microbatches} micro-batches")
    bars(sheet, BAR_LEFT, BAR_RIGHT, y + 118, BAR_ROW, compared)
    return sheet, y + 118 + BAR_ROW * len(compared) + 8


Row = list[tuple[float, float, Action, int]]  # start, end, action, what becomes of it


def row_of(simulated: Simulation, rank: int, found: list[Finding]) -> Row:
    """A rank's actions in order; what cannot run stands behind."""
    boxes = simulated.by_rank[rank]
    wrong = {finding.position for finding in found if finding.rank == rank}
    row = [(float(box.start), float(box.end), box.action) for box in boxes]
    at = float(simulated.makespan) + 0.5
    for action in simulated.schedule.actions[rank][len(boxes):]:
        row.append((at, at + 1, action))
        at += 1
    return [(*box, WRONG if place in wrong else RUNS if place < len(boxes) else WAITS)
            for place, box in enumerate(row)]


def add_lane(sheet: Sheet, simulated: Simulation, rank: int, row: Row, y: float, tall: float, scale: float) -> None:
    schedule = simulated.schedule
    sheet.text(f"rank {rank}", "label", LEFT - 8, y + tall / 2, f"rank {rank}", "end")
    sheet.rect(f"rank {rank} lane", "lane", LEFT, y, RIGHT - LEFT, tall)
    sheet.rect(f"rank {rank} idle", "idle", LEFT, y, scale * float(simulated.makespan), tall)
    num_chunks = len(schedule.stages[rank])
    for key, (start, end, action, becomes) in zip(keys_of(schedule, rank), row):
        frame = (LEFT + scale * start, y, scale * (end - start), tall)
        if becomes == RUNS:
            add_action(sheet, key, action, num_chunks, *frame)
        else:
            sheet.rect(key, "wrong" if becomes == WRONG else "stuck", *frame)
            sheet.inside(f"{key} is", "alarm" if becomes == WRONG else "quiet", *frame, str(action))
    peak = write_count(simulated.peak_activations[rank])
    sheet.text(f"rank {rank} in flight", "small", RIGHT + 8, y + tall / 2, f"{peak} in flight")


def keys_of(schedule: Schedule, rank: int) -> Iterator[str]:
    """"rank 0 F3.1" for each action; one that stands there once more is another mark."""
    seen: Counter[Action] = Counter()
    for action in schedule.actions[rank]:
        seen[action] += 1
        yield f"rank {rank} {action}" + (f" ({seen[action]})" if seen[action] > 1 else "")


def add_action(sheet: Sheet, key: str, action: Action, num_chunks: int, x: float, y: float, wide: float,
               tall: float) -> None:
    """Later chunks are lighter; a whole backward also makes the weight gradients: a strip in their colour."""
    tint = LIGHTEST * action.chunk / (num_chunks - 1) if num_chunks > 1 else 0.0
    sheet.rect(key, ROLES[action.kind], x, y, wide, tall, tint=tint)
    whole = action.kind == "B"
    if whole:
        sheet.rect(f"{key} weights", "weights", x, y + 0.82 * tall, wide, 0.18 * tall, tint=tint)
    on = "on dark" if action.kind == "F" and not action.chunk else "on light"
    sheet.inside(f"{key} is", on, x, y, wide, 0.84 * tall if whole else tall, str(action.microbatch))


def add_legend(sheet: Sheet, rows: list[Row], middle: float, several_chunks: bool) -> None:
    used = {action.kind for row in rows for _, _, action, _ in row}
    x = LEFT
    for kind in (kind for kind in NAMES if kind in used):
        sheet.rect(f"legend {kind}", ROLES[kind], x, middle - 7, 14, 14)
        if kind == "B":
            sheet.rect("legend B weights", "weights", x, middle + 4, 14, 3)
        sheet.text(f"legend {kind} is", "small", x + 20, middle, NAMES[kind])
        x += 38 + width_of(NAMES[kind], 11.5)
    x = legend(sheet, x, middle, [("idle", "idle")])
    if several_chunks:
        sheet.text("legend of chunks", "quiet", x, middle, "lighter: later chunk")


def key_of(settings: dict[str, Any], schedule: Schedule) -> str:
    order, slow = settings["order"], settings["slow"]
    interleaved = f", v={settings['v']}" if is_chunked(order) else ""
    placed = " / ".join(" ".join(map(str, lane)) for lane in schedule.actions) if order == BY_HAND else ""
    slow = "none" if slow is None else f"rank {slow}"
    key = f"{order}{interleaved} | p={settings['p']} | m={settings['m']} | slow={slow}"
    return f"{key} | {placed}" if placed else key


def comparison(settings: dict[str, Any], own: Simulation | None) -> list[tuple[str, float, str, bool]]:
    """(name, idle share, words, whether it is what is shown) of every schedule, with this p, m and v."""
    rows = [(name, idle, f"{idle:.0%} idle, {peak} in flight", name == settings["order"]) for name, idle, peak in
            all_orders(*(settings[name] for name in ("p", "m", "v", "slow")))]
    if own is not None:
        idle = own.bubble_fraction
        rows.append(("yours", idle, f"{idle:.0%} idle, {write_count(max(own.peak_activations))} in flight", True))
    return rows


def finding(simulated: Simulation, found: list[Finding], by_hand: bool, done: bool) -> str:
    """The headline."""
    idle, schedule = simulated.bubble_fraction, simulated.schedule
    waits = (f"{idle:.0%} idle: {idle * schedule.num_ranks:.1f} of your {schedule.num_ranks} ranks are paid for and "
             "wait" if idle else "0% idle: nobody waits")
    if not by_hand:
        return waits
    if found:
        return f"This cannot run: {found[0]}"
    if done:
        return f"It runs, {waits}"
    num = sum(map(len, schedule.actions))
    return f"Legal so far, not complete: {num} action{'s' * (num != 1)} placed" if num else "Place the first action"


def still_missing(schedule: Schedule, found: list[Finding]) -> str:
    if len(found) > 1:
        return f"{len(found) - 1} more findings."
    rest = [each for each in findings(schedule) if each.text not in {known.text for known in found}]
    return f"{rest[0].text}." if rest else ""


def explanation(simulated: Simulation, slow: int | None) -> str:
    step, work = (f"{float(each):.4g}" for each in (simulated.makespan, max(simulated.busy)))
    working = f"the busiest rank works {work}" if slow is not None else f"{work} of them work"
    idle = f"{simulated.bubble_of_ideal:.1%} of the ideal time"
    if simulated.bubble_of_span < simulated.bubble_fraction and slow is None:
        idle += f", {simulated.bubble_of_span:.0%} within a rank's own span"
    return f"A step takes {step} units, {working}; idle: {idle}. At most {in_flight(simulated)} in flight."


def checked_actions(given: Any) -> list[list[str]]:
    try:
        return [[str(action_of(text)) for text in lane] for lane in given]
    except TypeError:
        raise BadParameter(f"placed={given!r}: expected for each rank a list of texts such as "
                           "'F0' or 'B3.1'") from None


def checked_stages(given: Any) -> list[list[int]]:
    try:
        held = [list(chunks) for chunks in given]
        fine = sorted(stage for chunks in held for stage in chunks) == list(range(sum(map(len, held))))
    except TypeError:
        fine = False
    if not fine or not all(held):
        raise BadParameter(f"stages={given!r}: expected for each rank a list of its stages, such as [[0], [1]]")
    return held


def action_of(text: str) -> Action:
    """"F3.1" as an Action. TypeError for what is no such text."""
    match = re.fullmatch(r"([FBIW])(\d{1,4})(?:\.(\d{1,2}))?", text)
    if match is None:
        raise TypeError(f"{text!r} is no action")
    return Action(match[1], int(match[2]), int(match[3] or 0))


def in_flight(simulated: Simulation) -> str:
    most = max(simulated.peak_activations)
    return f"{write_count(most)} micro-batch{'es' * (most != 1)}"


def with_times(schedule: Schedule, slow: int | None, whole: bool = False) -> Simulation:
    """As far as it can run. Forward, backward for the input and for the weights take a rank 1 each, which its chunks
    share.

    whole: all times as often as makes them whole, which is quick; shares of the time stay what they are.
    """
    times = lcm(*map(len, schedule.stages)) if whole else 1
    factor: list[int | Fraction] = [0] * schedule.num_stages
    for rank, chunks in enumerate(schedule.stages):
        each = Fraction(times * (SLOWLY if rank == slow else 1), len(chunks))
        for stage in chunks:
            factor[stage] = each.numerator if each.denominator == 1 else each  # whole numbers are quick
    return give_times(schedule, walk(schedule), Costs(schedule, factor, factor, factor))


@lru_cache(maxsize=64)
def all_orders(p: int, m: int, v: int, slow: int | None) -> list[tuple[str, float, str]]:
    """(name, idle share, most micro-batches in flight on a rank) of every schedule."""
    simulated = [(name, with_times(row(p, m, v), slow, whole=True)) for name, row in SCHEDULES.items()]
    return [(name, each.bubble_fraction, write_count(max(each.peak_activations))) for name, each in simulated]


class PipelineSchedule(Explorable, draw=scene_of, script="pipeline_schedule.js"):
    """A schedule on `p` ranks (1 to 8) with `m` micro-batches (1 to 32), simulated.

    order: a name in SCHEDULES, or "by hand": the actions are then what `placed` says, for each rank a list of texts
    such as "F0" or, for chunk 1, "F0.1". `v`: chunks a rank, for interleaving. `slow`: a rank that takes twice as long,
    or None.

    `.schedule` is the Schedule that is shown, to be validated, simulated or run.
    """

    order = OneOf("1F1B", [*SCHEDULES, BY_HAND])
    p = WholeNumber(4, 1, MAX_RANKS)
    m = WholeNumber(8, 1, MAX_MICROBATCHES)
    v = WholeNumber(2, 1, MAX_CHUNKS)
    slow = Setting(None)
    placed = Setting(())
    stages = Setting(())

    @classmethod
    def check_settings(cls, settings: dict[str, Any]) -> dict[str, Any]:
        slow = settings["slow"]
        if slow is not None and (type(slow) is not int or not 0 <= slow < MAX_RANKS):
            raise BadParameter(f"slow={slow!r}: expected a rank from 0 to {MAX_RANKS - 1}, or None")
        return settings | {"placed": checked_actions(settings["placed"]), "stages": checked_stages(settings["stages"])}

    @classmethod
    def list_controls(cls, settings: dict[str, Any]) -> list[Control]:
        orders = [Choice(f"{name}, v = {v}" if v else name, {"order": name, **({"v": v} if v else {})})
                  for name, row in SCHEDULES.items() for v in ([0] if row.chunks else range(2, MAX_CHUNKS + 1))]
        # The browser knows what was placed before, so that it does these two itself.
        by_hand = [Choice("change it by hand", {}), Choice("draw your own", {})]
        p, slow = settings["p"], settings["slow"]
        return [Control("chooser", "schedule", ("order", "v"), (*orders, *by_hand)),
                slider("ranks", "p", range(2, MAX_RANKS + 1), p,
                       change=lambda p: {"p": p, "slow": slow if slow is not None and slow < p else None}),
                slider("micro-batches", "m", SLIDER_MICROBATCHES, settings["m"]),
                slider("slow rank", "slow", [None, *range(p)], slow,
                       lambda rank: "none" if rank is None else f"{rank}, twice as long")]

    def compute(self) -> dict[str, Any]:
        schedule = self.schedule
        return {
            **super().compute(),
            # for each rank: the keys of its actions' marks, the actions, its stages
            "lanes": [[list(keys_of(schedule, rank)), list(map(str, actions)), list(schedule.stages[rank])]
                      for rank, actions in enumerate(schedule.actions)],
            "by_hand": self.order == BY_HAND,
            "keys": KEYS,
        }

    @property
    def schedule(self) -> Schedule:
        """What is shown, as data: `validate` it, `simulate` it, run it on ranks. Set it to go on from there by hand."""
        return schedule_of(self.settings())

    @schedule.setter
    def schedule(self, schedule: Schedule) -> None:
        if not isinstance(schedule, Schedule):
            raise BadParameter(f"schedule={schedule!r}: expected a Schedule")
        with self.hold_trait_notifications():
            self.p, self.m, self.order = schedule.num_ranks, schedule.num_microbatches, BY_HAND
            self.stages = [list(chunks) for chunks in schedule.stages]
            self.placed = [[str(action) for action in lane] for lane in schedule.actions]
