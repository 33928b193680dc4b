"""Exercise 10.1: what one rank holds at its fullest under any layout, by kind.

    l  layers of hidden size h, 12 h^2 numbers each    V  numbers of the vocabulary; embedding and read-out are V h each
    b  rows of s tokens in a micro-batch    m = B/(dp b)  micro-batches of a replica    r  this rank's stage of pp
    a layer keeps 34 s b h bytes of a micro-batch (attention without s x s matrices), or its input alone, 2 s b h

Sources: Korthikanti et al. 2022, equations 2 and 4; Narayanan et al. 2021, section 2.2 (1F1B); Megatron-Core's
distributed optimiser, which keeps gradients in 32 bits: 6 + 12/dp bytes a parameter under ZeRO 1.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from course_lib.grading.compare import alike, describe, part
from course_lib.grading.exercise import Exercise, Traffic, Trial
from course_lib.grading.spent import Spent

Layout = dict[str, int]  # dp, tp, pp, rows of a micro-batch, zero stage, recompute (0, 1)
Bytes = dict[str, float]
STATE = {"parameters": (2, 3), "gradients": (4, 2), "optimizer_state": (12, 1)}  # bytes; the stage that cuts them
KINDS = (*STATE, "activations", "logits")

GPT3 = (96, 12288, 51200, 2048, 1536)
LLAMA = (32, 4096, 32000, 4096, 256)  # sizes of Llama 2 7B, with a GPT's layers


def layout(dp: int, tp: int, pp: int, rows: int = 1, zero: int = 1, recompute: int = 0) -> Layout:
    return {"dp": dp, "tp": tp, "pp": pp, "rows": rows, "zero": zero, "recompute": recompute}


class LayoutMemory(Exercise):
    number = "10.1"
    function = "my_memory"
    points = 3
    tolerance = (1e-9, 1e-6)
    right = "all kinds are right"
    budget = "each kind to the byte"
    hints = (
        "First count the numbers of the weights that lie on this rank: layers of its stage, and an end of the model "
        "where it has one. How many bytes each of them takes does not depend on the stage. Then: how many "
        "micro-batches are under way on stage r, and what does a layer keep of each?",
        "numbers = (layers/pp * 12 h^2 + V h for each end that this stage has) / tp. ZeRO cuts the optimiser's 12 "
        "bytes over dp from stage 1 on, the gradients' 4 from 2 on, the weights' 2 at 3. In flight are min(pp - r, m). "
        "With recomputation every layer keeps 2 s b h of each micro-batch, and one layer at a time 34 s b h besides.",
        "ends = (stage == 0) + (stage == pp - 1)\n"
        "numbers = (layers / pp * 12 * hidden**2 + ends * ...) / tp\n"
        "one = tokens * rows * hidden / tp\n"
        "in_flight = min(..., batch_rows // (dp * rows))\n"
        "kept = (2 if recompute else 34) * one * layers / pp * in_flight + (34 * one if recompute else 0)\n"
        "return {\"parameters\": 2 * numbers / (dp if zero >= 3 else 1), ...}",
    )
    cases = (("175B, dp8 tp8 pp16, stage 0", (*GPT3, layout(8, 8, 16), 0)),
             ("the same, stage 15", (*GPT3, layout(8, 8, 16), 15)),
             ("the same, stage 3, micro-batches of 2 rows, recomputing",
              (*GPT3, layout(8, 8, 16, rows=2, recompute=1), 3)),
             ("7B, dp64, ZeRO 3, micro-batches of 2 rows", (*LLAMA, layout(64, 1, 1, rows=2, zero=3), 0)),
             ("7B, dp4 tp2 pp8, ZeRO 2, 3 micro-batches, stage 1", (*LLAMA[:4], 12, layout(4, 2, 8, zero=2), 1)),
             ("7B, dp2 tp4 pp4, ZeRO 0, stage 3", (*LLAMA, layout(2, 4, 4, rows=4, zero=0), 3)))

    def trials(self, seed: int) -> list[Trial]:
        source = random.Random(seed)
        dp, tp, pp = (2 ** source.randint(*powers) for powers in ((1, 4), (1, 3), (2, 4)))
        drawn = layout(dp, tp, pp, source.choice((1, 2)), source.randint(1, 3), source.randint(0, 1))
        stage, hidden = source.randint(1, pp - 2), 128 * source.randint(8, 64)
        said = ", ".join(f"{name} {value}" for name, value in drawn.items())
        cases = (*self.cases, (f"{said}, stage {stage}",
                               (pp * source.randint(2, 6), hidden, 32000, 1024, 64 * dp, drawn, stage)))
        return [Trial([list(asked)], label) for label, asked in cases]

    @staticmethod
    def run(function: Callable, inputs: list[Any]) -> Any:
        *sizes, given, stage = inputs
        returned = function(*sizes, dict(given), stage)
        if not isinstance(returned, dict):
            return "nothing (None)" if returned is None else f"a {type(returned).__name__}"
        return {str(kind): float(held) if isinstance(held, int | float) else f"a {type(held).__name__}"
                for kind, held in returned.items()}

    def arguments(self, trial: Trial) -> Sequence[Any]:
        return trial.inputs[0]

    def wrong(self, trial: Trial, answers: list[Any]) -> str | None:
        given = answers[0] if len(answers) == 1 else None
        if type(given) is not dict or set(given) != set(KINDS):
            said = f"a dict with {', '.join(map(str, given)) or 'nothing'}" if type(given) is dict else describe(given)
            return f"it returned {said[:150]}: expected a dict with {', '.join(KINDS)}"
        right = held_by(*trial.inputs[0])
        kind = next((kind for kind in KINDS if not alike(given[kind], right[kind], self.tolerance)), None)
        if kind is None:
            return None
        if type(given[kind]) is not float:
            return f"{kind} is {describe(part(given, kind))}: expected a number of bytes"
        said = f"{kind} is {gigabytes(given[kind])}, expected {gigabytes(right[kind])}"
        cause = next((cause for cause, would in self.mistakes(*trial.inputs[0])
                      if not alike(would[kind], right[kind], self.tolerance)
                      and alike(given[kind], would[kind], self.tolerance)), None)
        return f"{said}: {cause}" if cause else said

    def expected(self, *asked: Any) -> Bytes:
        return held_by(*asked)

    def mistakes(self, *asked: Any) -> Iterable[tuple[str, Bytes]]:
        right = held_by(*asked)
        for kinds_off in (state_off, activations_off, logits_off):
            yield from ((cause, right | off) for cause, off in kinds_off(*asked))

    def spent(self, trial: Trial, answers: list[Any], traffic: Traffic) -> list[Spent]:
        given, right = answers[0], held_by(*trial.inputs[0])
        return [Spent("counted", sum(given.values()) / 1e9, sum(right.values()) / 1e9, "", " GB in all",
                      limit="{} expected", slack=1e-6)]


def held_by(layers: int, hidden: int, vocab: int, tokens: int, batch_rows: int, layout: Layout, stage: int) -> Bytes:
    """Bytes by kind on a rank of `stage`."""
    dp, tp, pp, rows, zero, recompute = (layout[key] for key in ("dp", "tp", "pp", "rows", "zero", "recompute"))
    last = stage == pp - 1
    numbers = (layers / pp * 12 * hidden**2 + ((stage == 0) + last) * vocab * hidden) / tp
    held = {kind: size * numbers / (dp if zero >= cut else 1) for kind, (size, cut) in STATE.items()}
    one, in_flight = tokens * rows * hidden / tp, min(pp - stage, batch_rows // (dp * rows))
    held["activations"] = (2 if recompute else 34) * one * layers / pp * in_flight + (34 * one if recompute else 0)
    return held | {"logits": 4 * tokens * rows * vocab / tp if last else 0.0}


def state_off(l: int, h: int, V: int, s: int, B: int, L: Layout, r: int) -> Iterator[tuple[str, Bytes]]:
    """Likely causes, and the bytes of parameters, gradients and the optimiser's state that each leads to."""
    dp, tp, pp, zero = (L[key] for key in ("dp", "tp", "pp", "zero"))
    ends = (r == 0) + (r == pp - 1)
    numbers = (l / pp * 12 * h**2 + ends * V * h) / tp

    def state(numbers: float, cut_over_dp: Callable[[int], bool] = lambda first: zero >= first) -> Bytes:
        return {kind: size * numbers / (dp if cut_over_dp(first) else 1) for kind, (size, first) in STATE.items()}

    end = "the embedding" if r == 0 else "the read-out"
    for counted in sorted({0, 1, 2} - {ends}):
        yield (f"{end} is left out, which this stage has" if counted < ends == 1 else
               "without a pipeline embedding and read-out are both here" if counted < ends else
               "ends of the model are counted that this stage has not: the embedding is on stage 0, the read-out "
               "on pp - 1", state((l / pp * 12 * h**2 + counted * V * h) / tp))
    yield "tp cuts the layers and not the ends: it cuts the vocabulary, too", state(
        l / pp * 12 * h**2 / tp + ends * V * h)
    yield "all layers are counted: a stage has layers / pp", state((l * 12 * h**2 + ends * V * h) / tp)
    yield "it is not cut by tp, which cuts every matrix", state(tp * numbers)
    yield "every kind is cut at every stage: ZeRO 1 cuts the optimiser's state alone", state(
        numbers, lambda first: zero > 0)
    yield "each stage cuts its own kind only: stages add up", state(numbers, lambda first: zero == first)
    yield ("nothing is cut over dp: ZeRO cuts the optimiser's state from stage 1 on, gradients from 2, weights "
           "at 3", state(numbers, lambda first: False))
    right = state(numbers)
    for kind, size, why in (
            ("gradients", 2, "2 bytes are taken for a gradient: here they are kept and added up in 32 bits"),
            ("parameters", 4, "4 bytes are taken for a weight: the one in 32 bits belongs to the optimiser"),
            ("optimizer_state", 8, "the weights in 32 bits are left out: AdamW's two and they are 12 bytes"),
            ("optimizer_state", 4, "one number is counted: weights in 32 bits and AdamW's two are 12 bytes")):
        yield why, {kind: right[kind] / STATE[kind][0] * size}


def activations_off(l: int, h: int, V: int, s: int, B: int, L: Layout, r: int) -> Iterator[tuple[str, Bytes]]:
    """The same of activations."""
    tp, pp, b, recompute = (L[key] for key in ("tp", "pp", "rows", "recompute"))
    m = B // (L["dp"] * b)
    flight = min(pp - r, m)

    def kept(in_flight: float, layers: float = l / pp, rows: int = b, split: int = tp, again: float = 1) -> Bytes:
        one = s * rows * h / split
        return {"activations": (2 if recompute else 34) * one * layers * in_flight
                + (34 * one * again if recompute else 0)}

    yield ("that is one micro-batch: pp - stage of them are under way on a stage of 1F1B, and never more than "
           "there are", kept(1))
    yield "all micro-batches are held, as in GPipe: 1F1B has min(pp - stage, m) under way", kept(m)
    yield ("min(pp, m) micro-batches are on stage 0 only: each stage has one less than the stage before, "
           "pp - stage", kept(min(pp, m)))
    yield "there are only m micro-batches, fewer than pp - stage", kept(pp - r)
    yield "stages are counted from the wrong end: stage 0 has most micro-batches under way", kept(min(r + 1, m))
    yield "a micro-batch has several rows, which are left out", kept(flight, rows=1)
    yield "all layers are counted: a stage has layers / pp", kept(flight, layers=l)
    yield "it is not cut by tp: with sequence parallelism it cuts everything that a layer keeps", kept(flight, split=1)
    if recompute:
        yield ("the layer that is made again is left out: while it goes backward it holds all 34 s b h of one "
               "micro-batch", kept(flight, again=0))
        yield "one layer at a time is made again, for one micro-batch", kept(flight, again=l / pp)
        yield "one layer at a time is made again, for one micro-batch", kept(flight, again=flight)
        yield "recomputing is left out: a layer keeps 2 s b h of a micro-batch", {
            "activations": 34 * s * b * h / tp * l / pp * flight}


def logits_off(l: int, h: int, V: int, s: int, B: int, L: Layout, r: int) -> Iterator[tuple[str, Bytes]]:
    """The same of logits."""
    b, tp = L["rows"], L["tp"]
    right = held_by(l, h, V, s, B, L, r)["logits"]
    yield "logits are on the last stage only, where the loss is", {"logits": 4 * s * b * V / tp}
    yield "logits are left out: the last stage holds those of one micro-batch", {"logits": 0.0}
    yield "logits are not cut: tp cuts the vocabulary", {"logits": tp * right}
    yield "2 bytes are taken for a logit: the loss is computed in 32 bits", {"logits": right / 2}
    yield "a micro-batch has several rows, which are left out", {"logits": right / b}


def gigabytes(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.6g} GB"
