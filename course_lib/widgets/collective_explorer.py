"""CollectiveExplorer: every collective of chapter 2 as a grid of ranks and chunks.

Who holds what, who is busy, and how many steps does it take?
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import traitlets

from course_lib.collectives.plan import Plan, plan, times
from course_lib.collectives.steps import MESSAGES, NUM_NODES, Message
from course_lib.plots.cell_style import CellStyle, key_to_cells
from course_lib.widgets.base import BadParameter, SteppedExplorable, WholeNumber
from course_lib.widgets.frames import encode

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MIN_RANKS, MAX_RANKS = 2, 8
OPS = tuple(dict.fromkeys(op for op, _ in MESSAGES))


class CollectiveExplorer(SteppedExplorable, script="collective_explorer.js"):
    """What every rank holds after `step` steps of a collective on `num_ranks` ranks (2 to 8), and who has sent what.

    `op` and `algorithm` have the names of collectives.collective_time, and "all_reduce" also has "hierarchical" on two
    nodes of an even number of ranks. Without an algorithm it is the first that the op has. To change several
    parameters at once, so that they fit together: `with explorer.hold_trait_notifications():`.
    """

    op = traitlets.Any("all_reduce").tag(sync=True, echo_update=False)
    algorithm = traitlets.Any(None, allow_none=True).tag(sync=True, echo_update=False)
    num_ranks = WholeNumber(4, MIN_RANKS, MAX_RANKS)
    choices = traitlets.List().tag(sync=True, echo_update=False)
    controls = ("op", "algorithm", "num_ranks")

    def __init__(self, op: str = "all_reduce", algorithm: str | None = None, num_ranks: int = 4,
                 **parameters: Any) -> None:
        if algorithm is None:
            algorithm = next((known for of, known in MESSAGES if of == op), None)
        super().__init__(op=op, algorithm=algorithm, num_ranks=num_ranks, **parameters)
        self.choices = [{"op": op, "algorithm": algorithm, "label": label(op, algorithm),
                         "ranks": [n for n in range(MIN_RANKS, MAX_RANKS + 1) if fits(algorithm, n)]}
                        for op, algorithm in MESSAGES]

    @traitlets.validate("op", "algorithm", "num_ranks")
    def _there_is_such_a_plan(self, proposal: Any) -> Any:
        asked = {"op": self.op, "algorithm": self.algorithm, "num_ranks": self.num_ranks}
        asked[proposal.trait.name] = proposal.value
        try:
            plan(**asked)
        except ValueError as error:
            raise BadParameter(str(error)) from None
        return proposal.value

    def plan(self) -> Plan:
        return plan(self.op, self.algorithm, self.num_ranks)

    def parameters(self) -> dict[str, list[Any]]:
        return {"op": list(OPS), "algorithm": [algorithm for op, algorithm in MESSAGES if op == self.op],
                "num_ranks": [n for n in range(MIN_RANKS, MAX_RANKS + 1) if fits(self.algorithm, n)],
                **super().parameters()}

    def num_steps(self) -> int:
        return self.plan().num_steps

    def compute(self) -> dict[str, Any]:
        return frames(self.op, self.algorithm, self.num_ranks)

    def sentence(self) -> str:
        shown = self.plan()
        name = label(shown.op, shown.algorithm)
        return (f"CollectiveExplorer, {name} on {shown.num_ranks} ranks: {shown.finding()}; {shown.detail()}; "
                f"shown after step {self.step}")

    def picture(self) -> Figure:
        from course_lib.widgets.collective_picture import draw

        return draw(self.plan(), self.step, texts(self.plan(), self.step), columns(self.plan()), adds(self.plan()))


@cache
def frames(op: str, algorithm: str, num_ranks: int) -> dict[str, Any]:
    """All steps of a collective as the browser draws them."""
    shown = plan(op, algorithm, num_ranks)
    steps = range(shown.num_steps + 1)
    return {
        "num_ranks": num_ranks,
        "num_steps": shown.num_steps,
        "adds": adds(shown),
        "columns": columns(shown),
        "num_inputs": shown.num_chunks,
        "states": [encode(state) for state in shown.states],
        "messages": [[]] + [[[m.src, m.dst, list(m.into), m.kind] for m in step.messages] for step in shown.steps],
        "sent": [list(map(float, shown.sent_by_rank(step))) for step in steps],
        "received": [list(map(float, shown.received_by_rank(step))) for step in steps],
        "amounts": [[list(map(times, shown.sent_by_rank(step))), list(map(times, shown.received_by_rank(step)))]
                    for step in steps],
        "busiest": float(shown.busiest),
        "bound": float(shown.bound),
        "bound_text": f"bound {times(shown.bound)}",
        "key": f"{key_to_cells(CellStyle(num_ranks, adds(shown)))}; framed = has just arrived",
        "texts": [texts(shown, step) for step in steps],
    }


def fits(algorithm: str, num_ranks: int) -> bool:
    return algorithm != "hierarchical" or num_ranks % NUM_NODES == 0


def label(op: str, algorithm: str) -> str:
    """`all-reduce, halving-doubling`."""
    through = {"naive": "through rank 0", "hierarchical": f"hierarchical, {NUM_NODES} nodes"}
    return f"{op.replace('_', '-')}, {through.get(algorithm, algorithm.replace('_', '-'))}"


def adds(shown: Plan) -> bool:
    return any(message.kind == "add" for step in shown.steps for message in step.messages)


def columns(shown: Plan) -> list[str]:
    """The names of the places."""
    if shown.op == "all_to_all":
        return [f"{way} {rank}" for way in ("to", "from") for rank in range(shown.num_ranks)]
    return [f"chunk {place}" for place in range(shown.num_chunks)]


def texts(shown: Plan, step: int) -> dict[str, str]:
    """All that is said at one step; the browser and the static picture show the same."""
    finding = shown.finding()
    return {
        "headline": f"In all, {finding}" if shown.num_steps else finding[0].upper() + finding[1:],
        "detail": shown.detail()[0].upper() + shown.detail()[1:],
        "step": f"Step {step} of {shown.num_steps}: {describe_step(shown, step)}",
        "key": f"{shown.op} {shown.algorithm} n={shown.num_ranks} step={step}",
    }


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
