"""PipelineSchedule: choose a schedule or place its actions by hand. Who waits, and what does it cost in memory?"""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Any

import traitlets
from matplotlib.figure import Figure

from course_lib.pictures.palette import INK, ink_on
from course_lib.pipeline_parallel import (
    Action,
    Finding,
    Schedule,
    Simulation,
    dualpipe_v,
    findings,
    gpipe,
    interleaved_1f1b,
    naive,
    one_f_one_b,
    zb_h1,
    zb_h2,
    zb_v,
)
from course_lib.pipeline_parallel.actions import KINDS
from course_lib.pipeline_parallel.dependencies import walk
from course_lib.pipeline_parallel.picture import COLOURS, colour_of
from course_lib.pipeline_parallel.simulate import Costs, timed, told
from course_lib.widgets import pipeline_schedule_picture
from course_lib.widgets.base import BadParameter, Explorable, WholeNumber
from course_lib.widgets.bucket_overlap import ticks

ORDERS: dict[str, Callable[[int, int, int], Schedule]] = {
    "naive": lambda p, m, v: naive(p, m),
    "GPipe": lambda p, m, v: gpipe(p, m),
    "1F1B": lambda p, m, v: one_f_one_b(p, m),
    "interleaved 1F1B": interleaved_1f1b,
    "ZB-H1": lambda p, m, v: zb_h1(p, m),
    "ZB-H2": lambda p, m, v: zb_h2(p, m),
    "ZB-V": lambda p, m, v: zb_v(p, m),
    "DualPipe-V": lambda p, m, v: dualpipe_v(p, m),
}
BY_HAND = "by hand"
MAX_RANKS, MAX_MICROBATCHES, MAX_CHUNKS = 8, 32, 4
SLIDER_MICROBATCHES = (*range(1, 17), 20, 24, 32)
SLOWLY = 2  # how much longer a slow rank takes
RUNS, WAITS, WRONG = range(3)  # what becomes of an action
KEYS = ("arrow keys move, F B I W place the next micro-batch, Backspace takes one away, Delete all; "
        "digits choose a chunk")


class PipelineSchedule(Explorable, script="pipeline_schedule.js"):
    """A schedule on `p` ranks (1 to 8) with `m` micro-batches (1 to 32), simulated.

    order: one of ORDERS, or "by hand": the actions are then what `placed` says, for each rank a list of texts such as
    "F0" or, for chunk 1, "F0.1". `v`: chunks a rank, for interleaving. `slow`: a rank that takes twice as long, or
    None. `costs`: forward, backward for the input, backward for the weights of a rank's layers, for one micro-batch.
    `max_in_flight`: how many activations of a chunk a rank may hold by hand; None for any number.

    `.schedule` is the Schedule that is shown, to be validated, simulated or run; it may be set, too.
    """

    order = traitlets.Any("1F1B").tag(sync=True, echo_update=False)
    p = WholeNumber(4, 1, MAX_RANKS).tag(sync=True, echo_update=False)
    m = WholeNumber(8, 1, MAX_MICROBATCHES).tag(sync=True, echo_update=False)
    v = WholeNumber(2, 1, MAX_CHUNKS).tag(sync=True, echo_update=False)
    slow = traitlets.Any(None, allow_none=True).tag(sync=True, echo_update=False)
    costs = traitlets.Any((1, 1, 1))
    placed = traitlets.Any(()).tag(sync=True, echo_update=False)
    stages = traitlets.Any(()).tag(sync=True, echo_update=False)
    max_in_flight = traitlets.Any(None, allow_none=True)
    choices = traitlets.Dict().tag(sync=True, echo_update=False)
    parameters = ("order", "p", "m", "v", "slow", "costs", "placed", "stages", "max_in_flight")

    def __init__(self, **parameters: Any) -> None:
        super().__init__(**parameters)
        orders = [[name, v, f"{name}, v = {v}" if name == "interleaved 1F1B" else name]
                  for name in ORDERS for v in (range(2, MAX_CHUNKS + 1) if name == "interleaved 1F1B" else [0])]
        self.choices = {"orders": orders, "by_hand": BY_HAND, "ranks": list(range(2, MAX_RANKS + 1)),
                        "microbatches": list(SLIDER_MICROBATCHES)}

    @traitlets.validate("order")
    def _there_is_such_an_order(self, proposal: Any) -> str:
        if proposal.value not in (*ORDERS, BY_HAND):
            raise BadParameter(f"order={proposal.value!r}: expected one of {', '.join(map(repr, (*ORDERS, BY_HAND)))}")
        return proposal.value

    @traitlets.validate("slow")
    def _is_a_rank(self, proposal: Any) -> int | None:
        if proposal.value is not None and (type(proposal.value) is not int or not 0 <= proposal.value < MAX_RANKS):
            raise BadParameter(f"slow={proposal.value!r}: expected a rank from 0 to {MAX_RANKS - 1}, or None")
        return proposal.value

    @traitlets.validate("max_in_flight")
    def _is_a_number_of_activations(self, proposal: Any) -> int | None:
        if proposal.value is not None and (type(proposal.value) is not int or proposal.value < 1):
            raise BadParameter(f"max_in_flight={proposal.value!r}: expected a whole number of 1 or more, or None")
        return proposal.value

    @traitlets.validate("costs")
    def _are_three_times(self, proposal: Any) -> tuple:
        given = proposal.value
        three = isinstance(given, tuple | list) and len(given) == 3
        if not three or not all(isinstance(each, int | float | Fraction) and 0 <= each < 1e6 for each in given):
            raise BadParameter(f"costs={given!r}: expected three times, forward, backward for the input, backward for "
                               "the weights, such as (1, 1, 1)")
        return tuple(given)

    @traitlets.validate("placed")
    def _are_actions(self, proposal: Any) -> list[list[str]]:
        try:
            return [[str(action_of(text)) for text in lane] for lane in proposal.value]
        except TypeError:
            raise BadParameter(f"placed={proposal.value!r}: expected for each rank a list of texts such as "
                               "'F0' or 'B3.1'") from None

    @traitlets.validate("stages")
    def _are_all_stages_once(self, proposal: Any) -> list[list[int]]:
        given = proposal.value
        try:
            held = [list(chunks) for chunks in given]
            fine = sorted(stage for chunks in held for stage in chunks) == list(range(sum(map(len, held))))
        except TypeError:
            fine = False
        if not fine or not all(held):
            raise BadParameter(f"stages={given!r}: expected for each rank a list of its stages, such as [[0], [1]]")
        return held

    @property
    def schedule(self) -> Schedule:
        """What is shown, as data: `validate` it, `simulate` it, or run it on ranks."""
        if self.order != BY_HAND:
            return ORDERS[self.order](self.p, self.m, self.v)
        lanes = [[action_of(text) for text in lane] for lane in self.placed][: self.p]
        lanes += [[] for _ in range(self.p - len(lanes))]
        fits = len(self.stages) == self.p
        stages = tuple(map(tuple, self.stages)) if fits else tuple((rank,) for rank in range(self.p))
        return Schedule(BY_HAND, self.m, stages, tuple(
            tuple(action for action in lane if action.microbatch < self.m and action.chunk < len(chunks))
            for lane, chunks in zip(lanes, stages)))

    @schedule.setter
    def schedule(self, schedule: Schedule) -> None:
        if not isinstance(schedule, Schedule):
            raise BadParameter(f"schedule={schedule!r}: expected a Schedule")
        with self.hold_trait_notifications():
            self.p, self.m, self.order = schedule.num_ranks, schedule.num_microbatches, BY_HAND
            self.stages = [list(chunks) for chunks in schedule.stages]
            self.placed = [[str(action) for action in lane] for lane in schedule.actions]

    def simulated(self) -> Simulation:
        """The schedule with its times; by hand, as far as it can run."""
        return with_times(self.schedule, self.slow, self.costs)

    def found(self) -> list[Finding]:
        return findings(self.schedule, self.max_in_flight, finished=False) if self.order == BY_HAND else []

    def compute(self) -> dict[str, Any]:
        simulated, found = self.simulated(), self.found()
        rows = [row_of(simulated, rank, found) for rank in range(self.p)]
        end = max((box[1] for row in rows for box in row), default=0) or 1.0
        schedule = simulated.schedule
        chunks = max(len(each) for each in schedule.stages)
        return {
            **self.texts(simulated, found),
            "rows": rows,
            "colours": {kind: [colour_of(Action(kind, 0, c), chunks) for c in range(chunks)] for kind in KINDS},
            "inks": {kind: [INK if c else ink_on(COLOURS[kind]) for c in range(chunks)] for kind in KINDS},
            "makespan": float(simulated.makespan),
            "end": end,
            "ticks": [[at, f"{at:g}"] for at in ticks(end)],
            "in_flight": [[float(peak), f"{told(peak)} in flight"] for peak in simulated.peak_activations],
            "compared": self.compared(simulated, found),
            "num_chunks": chunks,
            "by_hand": self.order == BY_HAND,
            "stages": [list(each) for each in schedule.stages],
            "key": self.key(schedule),
        }

    def key(self, schedule: Schedule) -> str:
        interleaved = f", v={self.v}" if self.order == "interleaved 1F1B" else ""
        drawn = " / ".join(" ".join(map(str, lane)) for lane in schedule.actions) if self.order == BY_HAND else ""
        slow = "none" if self.slow is None else f"rank {self.slow}"
        return f"{self.order}{interleaved} | p={self.p} | m={self.m} | slow={slow}" + (f" | {drawn}" if drawn else "")

    def compared(self, simulated: Simulation, found: list[Finding]) -> list[list[Any]]:
        """[name, idle share, words, whether it is what is shown] of every schedule, with this p, m, v and costs."""
        rows = [[name, idle, f"{idle:.0%} idle, {peak} in flight", name == self.order]
                for name, idle, peak in all_orders(self.p, self.m, self.v, self.slow, self.costs)]
        if self.order == BY_HAND and not found and finished(simulated.schedule):
            idle = simulated.bubble_fraction
            rows.append(["yours", idle, f"{idle:.0%} idle, {told(max(simulated.peak_activations))} in flight", True])
        return rows

    def texts(self, simulated: Simulation, found: list[Finding]) -> dict[str, str]:
        return {
            "headline": self.headline(simulated, found),
            "detail": self.detail(simulated, found),
            "note": KEYS if self.order == BY_HAND else "numbers are micro-batches; striped: the rank waits",
            "axis": "time; 1 is forward through a rank's layers for one micro-batch" if self.costs == (1, 1, 1)
                    else f"time; F, I, W of a rank's layers take {', '.join(map(str, self.costs))}",
            "chart": f"Idle share and memory of all schedules, {self.p} ranks, {self.m} micro-batches",
        }

    def headline(self, simulated: Simulation, found: list[Finding]) -> str:
        idle, schedule = simulated.bubble_fraction, simulated.schedule
        waits = (f"{idle:.0%} idle: {idle * self.p:.1f} of your {self.p} ranks are paid for and wait" if idle
                 else "0% idle: nobody waits")
        if self.order != BY_HAND:
            return waits
        if found:
            return f"This cannot run: {found[0]}"
        if finished(schedule):
            return f"It runs, {waits}"
        num = sum(map(len, schedule.actions))
        return f"Legal so far, not complete: {num} action{'s' * (num != 1)} placed" if num else "Place the first action"

    def detail(self, simulated: Simulation, found: list[Finding]) -> str:
        schedule = simulated.schedule
        if self.order == BY_HAND and (found or not finished(schedule)):
            missing = findings(schedule)
            rest = [finding for finding in missing if finding.text not in {each.text for each in found}]
            left = f"{len(found) - 1} more findings" if len(found) > 1 else rest[0].text if rest else ""
            return f"{left}." if left else ""
        step, work = (f"{float(each):.4g}" for each in (simulated.makespan, max(simulated.busy)))
        working = f"the busiest rank works {work}" if self.slow is not None else f"{work} of it work"
        idle = f"{simulated.bubble_of_ideal:.1%} of the ideal time"
        if simulated.bubble_of_span < simulated.bubble_fraction and self.slow is None:
            idle += f", {simulated.bubble_of_span:.0%} within a rank's own span"
        return f"A step takes {step}, {working}; idle: {idle}. At most {in_flight(simulated)} in flight."

    def sentence(self) -> str:
        simulated, found = self.simulated(), self.found()
        name = f"{self.order}, v = {self.v}" if self.order == "interleaved 1F1B" else self.order
        slow = "" if self.slow is None else f", rank {self.slow} slow"
        size = f"{self.p} rank{'s' * (self.p > 1)}, {self.m} micro-batch{'es' * (self.m > 1)}"
        return (f"PipelineSchedule, {name}, {size}{slow}: "
                f"{self.headline(simulated, found)}. {self.detail(simulated, found)}").strip()

    def picture(self) -> Figure:
        return pipeline_schedule_picture.draw(self.simulated(), self.compute())


def action_of(text: str) -> Action:
    """"F3.1" as an Action. TypeError for what is no such text."""
    match = re.fullmatch(r"([FBIW])(\d{1,4})(?:\.(\d{1,2}))?", text)
    if match is None:
        raise TypeError(f"{text!r} is no action")
    return Action(match[1], int(match[2]), int(match[3] or 0))


def in_flight(simulated: Simulation) -> str:
    most = max(simulated.peak_activations)
    return f"{told(most)} micro-batch{'es' * (most != 1)}"


def finished(schedule: Schedule) -> bool:
    return not findings(schedule)


def with_times(schedule: Schedule, slow: int | None, costs: tuple) -> Simulation:
    """As far as it can run. A rank's costs are shared among its chunks."""
    factor = [Fraction(0)] * schedule.num_stages
    for rank, chunks in enumerate(schedule.stages):
        for stage in chunks:
            factor[stage] = Fraction(SLOWLY if rank == slow else 1, len(chunks))
    return timed(schedule, walk(schedule), Costs(schedule, *([cost * each for each in factor] for cost in costs)))


def row_of(simulated: Simulation, rank: int, found: list[Finding]) -> list[list[Any]]:
    """[start, end, kind, micro-batch, chunk, what becomes of it] of a rank's actions; what cannot run stands behind."""
    boxes = simulated.by_rank[rank]
    row = [[float(box.start), float(box.end), *box.action, RUNS] for box in boxes]
    at = float(simulated.makespan) + 0.5
    for action in simulated.schedule.actions[rank][len(boxes):]:
        row.append([at, at + 1, *action, WAITS])
        at += 1
    for finding in found:
        if finding.rank == rank and finding.position is not None:
            row[finding.position][-1] = WRONG
    return row


@lru_cache(maxsize=64)
def all_orders(p: int, m: int, v: int, slow: int | None, costs: tuple) -> list[tuple[str, float, str]]:
    """(name, idle share, most micro-batches in flight on a rank) of every schedule."""
    simulated = [(name, with_times(generate(p, m, v), slow, costs)) for name, generate in ORDERS.items()]
    return [(name, each.bubble_fraction, told(max(each.peak_activations))) for name, each in simulated]
