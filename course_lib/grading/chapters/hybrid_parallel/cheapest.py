"""Exercise 9.7, open-ended: the layout in which a given cluster takes the shortest step, found in few trial runs.

`step_of` below is the cluster: what each look at a layout costs and gives. The rules of thumb that it obeys are the
chapter's; it leaves out what does not change the choice much (overlap of the last all-reduce, latency, the embedding).
"""

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from course_lib.grading.compare import describe
from course_lib.grading.exercise import Exercise, Traffic, Trial
from course_lib.grading.spent import Spent

Layout = dict[str, int]  # dp, pp, tp, rows of a micro-batch, zero stage (0, 1, 3), recompute (0, 1)
KEYS = ("dp", "pp", "tp", "rows", "zero", "recompute")
LOOKS = 64  # trial runs
PAR = 1.01  # of the shortest step of all


def step_of(layout: Layout, devices: int, per_node: int, memory: float, flops_per_s: float, fast: float, slow: float,
            parameters: float, layers: int, hidden: int, tokens: int, batch_rows: int) -> tuple[float, float]:
    """(seconds of a step, bytes on a device) of a GPT in bf16 with AdamW; ranks count along tp, then dp, then pp."""
    dp, pp, tp, rows, zero, recompute = (layout[key] for key in KEYS)
    part, micro_batches = parameters / (pp * tp), batch_rows // (dp * rows)
    activation = 2 * rows * tokens * hidden  # bytes between two layers

    def seconds(num_bytes: float, reach: int) -> float:
        return num_bytes / (fast if reach <= per_node else slow)  # reach: how many ranks apart its members are

    computing = (8 if recompute else 6) * part * rows * tokens / flops_per_s
    tensor = seconds((6 if recompute else 4) * layers / pp * 2 * (tp - 1) / tp * activation, tp)
    pipe = seconds(2 * activation / tp, devices) if pp > 1 else 0.0
    gathers = seconds(2 * 2 * part * (dp - 1) / dp, tp * dp) if zero == 3 else 0.0
    gradients = seconds(2 * 2 * part * (dp - 1) / dp, tp * dp)
    step = (micro_batches + pp - 1) * max(computing + tensor + pipe, gathers) + gradients
    state = part * {0: 16, 1: 4 + 12 / dp, 3: 16 / dp}[zero]  # weights and gradients 2 + 2, the optimiser's 12
    kept = (2 if recompute else 34) / 2 * activation * layers / (pp * tp) * min(pp, micro_batches)
    return step, state + kept


H100 = 400e12, 450e9, 50e9  # FLOP/s, bytes/s inside a node and out of it
CASES = (
    ("70B on 128 H100, 128 rows of 4,096 tokens", (128, 8, 80e9, *H100, 70e9, 80, 8192, 4096, 128)),
    ("405B on 1,024 H100, 512 rows of 8,192 tokens", (1024, 8, 80e9, *H100, 405e9, 126, 16384, 8192, 512)),
    ("70B on 128 H100, 32 rows of 32,768 tokens", (128, 8, 80e9, *H100, 70e9, 80, 8192, 32768, 32)),
    ("7B on 16 devices of 24 GB, one a node, 10 Gbit/s between them",
     (16, 1, 24e9, 60e12, 16e9, 1.25e9, 7e9, 32, 4096, 2048, 128)),
    ("13B on 32 devices of 40 GB, 4 a node, 5 GB/s between nodes",
     (32, 4, 40e9, 150e12, 300e9, 5e9, 13e9, 40, 5120, 2048, 256)),
    ("30B on 16 devices of 80 GB, all on one switch", (16, 16, 80e9, 400e12, 450e9, 450e9, 30e9, 60, 6656, 4096, 128)),
)


class CheapestLayout(Exercise):
    number = "9.7"
    function = "my_cheapest_layout"
    points = 5
    right = "the layout is possible"
    budget = f"par: 1 % above the shortest step of all layouts that fit, after at most {LOOKS} looks"
    hints = (
        "There are a thousand layouts, and you may look at 64. Which choices can be ruled out without looking? "
        "What does tp do beyond a node? Which stage of ZeRO costs nothing? When is recomputing worth its third?",
        "Let tp stop at the node, and take ZeRO 1 in place of 0. For each tp and pp (dp is what is left) begin with "
        "rows = 1; larger micro-batches matter where ZeRO 3 gathers. Look without recomputing first: only where it "
        "does not fit look again with it. And where stages and slices alone are too small for the weights, 4 bytes "
        "a parameter, nothing but ZeRO 3 can fit.",
        "best = None\n"
        "for tp in powers(per_node):\n"
        "    for pp in powers(min(layers, devices // tp)):\n"
        "        dp = ...\n"
        "        if batch_rows % dp or 4 * parameters / (tp * pp) > memory:\n"
        "            continue\n"
        "        for recompute in (0, 1):\n"
        "            layout = {\"dp\": dp, \"pp\": pp, \"tp\": tp, \"rows\": 1, \"zero\": 1,\n"
        "                      \"recompute\": recompute}\n"
        "            seconds, held = look(layout)\n"
        "            if held <= memory:\n"
        "                best = ...\n"
        "                break\n"
        "...  # with the looks that are left: rows of 2 and 4, ZeRO 3 where dp stays in a node\n"
        "return best[1]",
    )

    def trials(self, seed: int) -> list[Trial]:
        source = random.Random(seed)
        devices, B = 2 ** source.randint(5, 8), source.randint(8, 60)
        hidden = 512 * round((B * 1e9 / 12 / 45) ** 0.5 / 512)
        drawn = (f"{B}B on {devices} H100, 4,096 tokens",
                 (devices, 8, 80e9, *H100, B * 1e9, round(B * 1e9 / 12 / hidden**2), hidden, 4096, 512))
        return [Trial([list(asked)], label) for label, asked in (*CASES, drawn)]

    @staticmethod
    def run(function: Callable, inputs: list[Any]) -> dict[str, Any]:
        looks = 0

        def look(layout: Layout) -> tuple[float, float]:
            nonlocal looks
            looks += 1
            if fault := fault_of(layout, *inputs):
                raise ValueError(f"look({layout}): {fault}")
            return step_of(layout, *inputs)

        returned = function(look, *inputs)
        whole = isinstance(returned, dict) and all(type(value) in (int, bool) for value in returned.values())
        return {"layout": {str(key): int(value) for key, value in returned.items()} if whole else
                "nothing (None)" if returned is None else f"a {type(returned).__name__}, no dict of whole numbers",
                "looks": looks}

    def arguments(self, trial: Trial) -> Sequence[Any]:
        return trial.inputs[0]

    def wrong(self, trial: Trial, answers: list[Any]) -> str | None:
        answer = answers[0] if type(answers[0]) is dict else {}
        layout = answer.get("layout")
        if type(layout) is not dict or type(answer.get("looks")) is not int:
            return f"it returned {describe(layout)}: expected a dict with {', '.join(KEYS)}"
        fault = fault_of(layout, *trial.inputs[0])
        return f"it returned {layout}: {fault}" if fault else None

    def spent(self, trial: Trial, answers: list[Any], traffic: Traffic) -> Sequence[Spent]:
        asked, layout, looks = trial.inputs[0], answers[0]["layout"], answers[0]["looks"]
        seconds, held = step_of(layout, *asked)
        shortest, best = best_of(asked)
        who, why = f"with {said(layout)} it", reason(layout, best, asked)
        return [Spent("holds", held / 1e9, asked[2] / 1e9, "", " GB on a device", who=who, why=why),
                Spent("takes", seconds, shortest * PAR, "", " s for a step", who=who, why=why, limit="par {}",
                      slack=1e-9),
                Spent("took", looks, LOOKS, "look", why="every look is a run on the whole cluster: rule out what "
                      "cannot be best before you look", claimed=True)]


def fault_of(layout: Any, devices: int, per_node: int, memory: float, flops_per_s: float, fast: float, slow: float,
             parameters: float, layers: int, hidden: int, tokens: int, batch_rows: int) -> str | None:
    """Why this is no layout of so many devices."""
    if not isinstance(layout, dict) or set(layout) != set(KEYS):
        return f"expected {', '.join(KEYS)}, and nothing else"
    if any(not isinstance(value, int) for value in layout.values()) or min(
            layout[key] for key in ("dp", "pp", "tp", "rows")) < 1:
        return "expected whole numbers, dp, pp, tp and rows at least 1"
    if layout["dp"] * layout["pp"] * layout["tp"] != devices:
        return f"dp * pp * tp is {layout['dp'] * layout['pp'] * layout['tp']}, and there are {devices} devices"
    if layout["pp"] > layers:
        return f"{layout['pp']} stages of {layers} layers: every stage needs one"
    if batch_rows % (layout["dp"] * layout["rows"]):
        return (f"dp * rows is {layout['dp'] * layout['rows']}, which does not divide the {batch_rows} rows of the "
                "batch")
    if layout["zero"] not in (0, 1, 3) or layout["recompute"] not in (0, 1):
        return "expected zero = 0, 1 or 3, and recompute = 0 or 1"
    return None


def every_layout(*asked: Any) -> Iterable[Layout]:
    """All of them: dp, pp, tp and rows are divisors."""
    devices, layers, batch_rows = asked[0], asked[7], asked[10]
    for tp in divisors(devices):
        for pp in divisors(devices // tp):
            dp = devices // (tp * pp)
            if pp <= layers and batch_rows % dp == 0:
                yield from ({"dp": dp, "pp": pp, "tp": tp, "rows": rows, "zero": zero, "recompute": recompute}
                            for rows in divisors(batch_rows // dp) for zero in (0, 1, 3) for recompute in (0, 1))


def divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def best_of(asked: Sequence[Any]) -> tuple[float, Layout]:
    """(seconds, layout) of the shortest step of all that fit."""
    found = ((*step_of(layout, *asked), layout) for layout in every_layout(*asked))
    return min(((seconds, layout) for seconds, held, layout in found if held <= asked[2]), key=lambda each: each[0])


def reason(layout: Layout, best: Layout, asked: Sequence[Any]) -> str:
    """Why this layout is not the best one: the first thing that one would change."""
    devices, per_node, memory, batch_rows = asked[0], asked[1], asked[2], asked[10]
    seconds, held = step_of(layout, *asked)

    def better(**changes: int) -> bool:
        then, needed = step_of({**layout, **changes}, *asked)
        return needed <= memory and (then < seconds or held > memory)

    other_rows = any(better(rows=rows) for rows in divisors(batch_rows // layout["dp"]))
    known = (
        (layout["dp"] == devices > best["dp"], "data parallelism alone: here the model has to be cut as well"),
        (held > memory and other_rows, "smaller micro-batches would make it fit"),
        (held > memory and better(recompute=1), "recomputing would make it fit"),
        (held > memory and better(zero=3), "ZeRO 3 would make it fit"),
        (held > memory, "it is chosen as if memory were without end"),
        (layout["tp"] > per_node, "tp reaches beyond a node, and sends over the slow wire in every layer"),
        (better(recompute=0), "it recomputes, which is a third more arithmetic, and would fit without"),
        (layout["zero"] == 3 and better(zero=1), "ZeRO 3 gathers the weights again for every micro-batch, and ZeRO 1 "
                                                 "would fit"),
        (other_rows, "micro-batches of other rows take less: the smaller they are the less a pipeline idles, and the "
                     "larger the more each of ZeRO 3's gathers hides behind"),
        (layout["recompute"] > best["recompute"], "it recomputes, a third more arithmetic, where other layouts fit "
                                                  "without"),
        (layout["pp"] > best["pp"], "so many stages leave the pipeline idle: others fit with fewer"),
        (layout["tp"] > best["tp"], "so much tp sends too much in every layer: others fit with less"),
        (layout["tp"] < best["tp"], "more tp would be nearly free inside the node, and save stages or gathers"),
        (layout["pp"] < best["pp"], "more stages send less than dp does with gradients and gathers"))
    return next((words for holds, words in known if holds), "")


def said(layout: Layout) -> str:
    """dp4 pp2 tp8, 1 row, ZeRO 1"""
    rows = f"{layout['rows']} row{'s' * (layout['rows'] > 1)}"
    return (f"dp{layout['dp']} pp{layout['pp']} tp{layout['tp']}, {rows}, ZeRO {layout['zero']}"
            + ", recomputing" * layout["recompute"])
