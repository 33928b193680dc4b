"""Chapter 10: right and wrong answers, what each text stresses, each docstring's example; tools/answers.py reads it."""
# ruff: noqa: F821

import math
from fractions import Fraction

import numpy
import torch

from tools.answers import example, right, term, wrong


def of_each(value, change):
    return {name: change(number) for name, number in value.items()}


# ---- 10.1 my_memory
@right("10.1", "whole numbers, layer by layer, and 1F1B run for what is under way")
def memory_by_counting(layers, hidden, vocab, tokens, batch_rows, layout, stage):
    dp, tp, pp, rows = (layout[key] for key in ("dp", "tp", "pp", "rows"))
    own = range(stage * layers // pp, (stage + 1) * layers // pp)
    matrices = [4 * hidden * hidden, 8 * hidden * hidden] * len(own) + [vocab * hidden] * [0, pp - 1].count(stage)
    numbers = Fraction(sum(matrices), tp)
    held = most = 0
    to_come = batch_rows // dp // rows
    while to_come:  # forward as far as 1F1B lets it, then one back for one forward
        held, to_come = held + 1, to_come - 1
        most = max(most, held)
        held -= held == pp - stage
    kept = Fraction(tokens * rows * hidden, tp)
    return {
        "parameters": 2 * numbers / (dp if layout["zero"] > 2 else 1),
        "gradients": 4 * numbers / (dp if layout["zero"] > 1 else 1),
        "optimizer_state": 12 * numbers / (dp if layout["zero"] > 0 else 1),
        "activations": sum(most * kept * (2 if layout["recompute"] else 34) for _ in own)
        + (34 * kept if layout["recompute"] else 0),
        "logits": Fraction(4 * tokens * rows * vocab, tp) if stage + 1 == pp else 0}


RIGHT_10_1 = [
    right("10.1", "Fractions")(lambda *asked: of_each(my_memory(*asked), Fraction)),
    right("10.1", "numpy's numbers")(lambda *asked: of_each(my_memory(*asked), numpy.float64))]


def memory(layers, hidden, vocab, tokens, batch_rows, layout, stage, under_way=None, ends=None, gradient_bytes=4,
           cut=lambda zero, first: zero >= first, made_again=1):
    dp, tp, pp, rows, zero = (layout[key] for key in ("dp", "tp", "pp", "rows", "zero"))
    ends = (stage == 0) + (stage == pp - 1) if ends is None else ends
    numbers = (layers / pp * 12 * hidden**2 + ends * vocab * hidden) / tp
    one, m = tokens * rows * hidden / tp, batch_rows // (dp * rows)
    flight = min(pp - stage, m) if under_way is None else under_way(pp, m)
    kept, again = (2 * one, 34 * one * made_again) if layout["recompute"] else (34 * one, 0)
    return {
        "parameters": 2 * numbers / (dp if cut(zero, 3) else 1),
        "gradients": gradient_bytes * numbers / (dp if cut(zero, 2) else 1),
        "optimizer_state": 12 * numbers / (dp if cut(zero, 1) else 1),
        "activations": kept * layers / pp * flight + again,
        "logits": 4 * tokens * rows * vocab / tp if stage == pp - 1 else 0}


@wrong("10.1", "all micro-batches are held, as in GPipe: 1F1B has min(pp - stage, m) under way")
def memory_of_gpipe(*asked):
    return memory(*asked, under_way=lambda pp, m: m)


@wrong("10.1", "min(pp, m) micro-batches are on stage 0 only: each stage has one less than the stage before, pp - "
       "stage")
def memory_of_stage_0_everywhere(*asked):
    return memory(*asked, under_way=min)


@wrong("10.1", "that is one micro-batch: pp - stage of them are under way on a stage of 1F1B, and never more than "
       "there are")
def memory_of_one_micro_batch(*asked):
    return memory(*asked, under_way=lambda pp, m: 1)


@wrong("10.1", "2 bytes are taken for a gradient: here they are kept and added up in 32 bits")
def memory_of_short_gradients(*asked):
    return memory(*asked, gradient_bytes=2)


@wrong("10.1", "the embedding is left out, which this stage has")
def memory_of_layers_alone(*asked):
    return memory(*asked, ends=0)


@wrong("10.1", "every kind is cut at every stage: ZeRO 1 cuts the optimiser's state alone")
def memory_cut_at_every_stage(*asked):
    return memory(*asked, cut=lambda zero, first: zero > 0)


@wrong("10.1", "each stage cuts its own kind only: stages add up")
def memory_cut_one_kind_a_stage(*asked):
    return memory(*asked, cut=lambda zero, first: zero == first)


@wrong("10.1", "the layer that is made again is left out: while it goes backward it holds all 34 s b h of one "
       "micro-batch")
def memory_of_inputs_alone(*asked):
    return memory(*asked, made_again=0)


def ends_of(layout, stage):
    return (stage == 0) + (stage == layout["pp"] - 1)


ENDS = [wrong("10.1", says)(lambda *asked, ends=ends: memory(*asked, ends=ends(*asked[-2:]))) for ends, says in (
    (lambda layout, stage: 2,
     "ends of the model are counted that this stage has not: the embedding is on stage 0, the read-out on pp - 1"),
    (lambda layout, stage: ends_of(layout, stage) * layout["tp"],
     "tp cuts the layers and not the ends: it cuts the vocabulary, too"),
    (lambda layout, stage: stage == 0, "the read-out is left out, which this stage has"),
    (lambda layout, stage: min(ends_of(layout, stage), 1), "without a pipeline embedding and read-out are both here"))]


def kinds_of_other(kinds, change):
    """my_memory, but `kinds` of what `change` makes of the arguments."""
    def answer(*asked):
        return my_memory(*asked) | {kind: my_memory(*change(*asked))[kind] for kind in kinds}

    return answer


def another_layout(**cut):
    return lambda *asked: (*asked[:5], asked[5] | cut, asked[6])


def all_layers(layers, *rest):
    return layers * rest[4]["pp"], *rest


STATE = ("parameters", "gradients", "optimizer_state")
OTHERS = [wrong("10.1", says)(kinds_of_other(kinds, change)) for kinds, change, says in (
    (STATE, all_layers, "all layers are counted: a stage has layers / pp"),
    (["activations"], all_layers, "all layers are counted: a stage has layers / pp"),
    (STATE, another_layout(tp=1), "it is not cut by tp, which cuts every matrix"),
    (["activations"], another_layout(tp=1),
     "it is not cut by tp: with sequence parallelism it cuts everything that a layer keeps"),
    (["logits"], another_layout(tp=1), "logits are not cut: tp cuts the vocabulary"),
    (STATE, another_layout(zero=0),
     "nothing is cut over dp: ZeRO cuts the optimiser's state from stage 1 on, gradients from 2, weights at 3"),
    (["activations", "logits"], another_layout(rows=1), "a micro-batch has several rows, which are left out"),
    (["logits"], another_layout(rows=1), "a micro-batch has several rows, which are left out"),
    (["activations"], another_layout(recompute=0), "recomputing is left out: a layer keeps 2 s b h of a micro-batch"),
    (["activations"], lambda *asked: (*asked[:4], 10**9, *asked[5:]),
     "there are only m micro-batches, fewer than pp - stage"),
    (["activations"], lambda *asked: (*asked[:6], asked[5]["pp"] - 1 - asked[6]),
     "stages are counted from the wrong end: stage 0 has most micro-batches under way"),
    (["logits"], lambda *asked: (*asked[:6], asked[5]["pp"] - 1),
     "logits are on the last stage only, where the loss is"))]
TIMES = [wrong("10.1", says)(lambda *asked, times=times, kind=kind: my_memory(*asked) | {
    kind: times * my_memory(*asked)[kind]}) for kind, times, says in (
        ("parameters", 2, "4 bytes are taken for a weight: the one in 32 bits belongs to the optimiser"),
        ("optimizer_state", 2 / 3, "the weights in 32 bits are left out: AdamW's two and they are 12 bytes"),
        ("optimizer_state", 1 / 3, "one number is counted: weights in 32 bits and AdamW's two are 12 bytes"),
        ("logits", 0, "logits are left out: the last stage holds those of one micro-batch"),
        ("logits", 1 / 2, "2 bytes are taken for a logit: the loss is computed in 32 bits"))]


@wrong("10.1", "one layer at a time is made again, for one micro-batch")
def memory_of_all_layers_made_again(*asked):
    return memory(*asked, made_again=asked[0] / asked[5]["pp"])


@wrong("10.1", "it uses course_lib.costs")
def memory_of_the_library(layers, hidden, vocab, tokens, batch_rows, layout, stage):
    from course_lib.costs.memory import training_memory

    return training_memory(12 * layers * hidden**2, "mixed", layout["zero"], layout["dp"]).by_kind()


@wrong("10.1", "one micro-batch is missing: on stage r of pp there are pp - r under way, one on the last")
def memory_of_one_micro_batch_less(*asked):
    return memory(*asked, under_way=lambda pp, m: min(pp - asked[-1] - 1, m))


@wrong("10.1", "the layer that is made again is taken out of the inputs: its own input is kept as well, 34 s b h come "
       "on top")
def memory_of_a_layer_in_place_of_its_input(*asked):
    held, layout = my_memory(*asked), asked[5]
    own_input = 2 * asked[3] * layout["rows"] * asked[1] / layout["tp"]
    return held | {"activations": held["activations"] - layout["recompute"] * own_input}


UNITS = [wrong("10.1", says)(lambda *asked, unit=unit: {kind: size / unit for kind, size in my_memory(*asked).items()})
         for unit, says in ((1e9, "these are GB: bytes are asked"), (2**30, "these are GiB: bytes are asked"))]


@wrong("10.1", "rows of a micro-batch are forgotten: a replica has batch_rows / (dp rows) micro-batches")
def memory_with_rows_forgotten(layers, hidden, vocab, tokens, batch_rows, layout, stage):
    held = my_memory(layers, hidden, vocab, tokens, batch_rows, layout, stage)
    more = my_memory(layers, hidden, vocab, tokens, batch_rows * layout["rows"], layout, stage)
    return held | {"activations": more["activations"]}


HAS_ENDS = "(stage == 0) + (stage == pp - 1)"
UNDER_WAY = "min(pp - stage, batch_rows // (dp * rows))"


def layout_memory(inputs, answers):
    layers, hidden, vocab, tokens, batch_rows, layout, _ = inputs[0]
    held = {kind: f"{size:,.0f}" for kind, size in answers[0].items()}
    return [
        f"{layers} layers of hidden size {hidden}, a vocabulary of {vocab}, {tokens} tokens a row, a batch of "
        f"{batch_rows} rows in one micro-batch (rows {layout['rows']})",
        f"parameters {held['parameters']} bytes, gradients {held['gradients']}, optimizer_state "
        f"{held['optimizer_state']}, activations 34 * 8 * 3 * 10 * 2 = {held['activations']}, logits 4 * 8 * 3 * 100 = "
        f"{held['logits']}"]


TEXT_10_1 = [
    term("10.1", "a stage has layers / pp", "(layers / pp * 12", "(layers * 12"),
    term("10.1", "and keeps so many layers' activations", "kept * layers / pp", "kept * layers"),
    term("10.1", "a layer has 12 h^2 numbers", "12 * hidden**2", "8 * hidden**2"),
    term("10.1", "the embedding lies on stage 0", HAS_ENDS, "(stage == pp - 1)"),
    term("10.1", "the read-out on the last one", HAS_ENDS, "(stage == 0)"),
    term("10.1", "it is not tied to the embedding", HAS_ENDS, "(stage in (0, pp - 1))"),
    term("10.1", "tp cuts the vocabulary", " + ends * vocab * hidden) / tp", ") / tp + ends * vocab * hidden"),
    term("10.1", "tp cuts what a layer keeps", "one = tokens * rows * hidden / tp", "one = tokens * rows * hidden"),
    term("10.1", "tp cuts the logits", "rows * vocab / tp", "rows * vocab"),
    term("10.1", "2 bytes of a weight", '"parameters": 2 *', '"parameters": 4 *'),
    term("10.1", "gradients are added up in 32 bits", '"gradients": 4 *', '"gradients": 2 *'),
    term("10.1", "weights in 32 bits, AdamW's two", '"optimizer_state": 12 *', '"optimizer_state": 8 *'),
    term("10.1", "weights are cut at ZeRO 3", "zero >= 3", "zero > 3"),
    term("10.1", "gradients from ZeRO 2 on", "zero >= 2", "zero >= 3"),
    term("10.1", "not before", "zero >= 2", "zero >= 1"),
    term("10.1", "the optimiser's state from ZeRO 1 on", "zero >= 1", "zero >= 2"),
    term("10.1", "from 1 on, not at 1 alone", "zero >= 1", "zero == 1"),
    term("10.1", "pp - stage micro-batches under way", "min(pp - stage,", "min(pp,"),
    term("10.1", "never more than a replica has", UNDER_WAY, "pp - stage"),
    term("10.1", "a replica has a dp-th of the batch", "(dp * rows)", "rows"),
    term("10.1", "in micro-batches of several rows", "(dp * rows)", "dp"),
    term("10.1", "whose activations are all kept", "one = tokens * rows", "one = tokens"),
    term("10.1", "and logits", "4 * tokens * rows", "4 * tokens"),
    term("10.1", "recomputing keeps inputs", "(2 * one, 34 * one)", "(34 * one, 34 * one)"),
    term("10.1", "and the one layer that is made again", "(2 * one, 34 * one)", "(2 * one, 0)"),
    term("10.1", "one layer", "(2 * one, 34 * one)", "(2 * one, 34 * one * layers / pp)"),
    term("10.1", "logits are on the last stage", " if stage == pp - 1 else 0,", ","),
    example("10.1", layout_memory)]


# ---- 10.2 my_reading
@right("10.2", "one plan after the other, numpy's numbers")
def reading_by_numpy(plans, limit, runs):
    steps = numpy.array([sum(plan["seconds"].values()) for plan in plans])
    kinds = ("optimizer_state", "gradients", "parameters")
    held = numpy.array([[sum(size / plan["dp"] ** (kind in kinds[plan["zero"]:max(zero, plan["zero"])])
                             for kind, size in plan["memory"].items()) for zero in range(4)] for plan in plans])
    best = int(numpy.where(held[:, 0] <= limit, steps, numpy.inf).argmin())
    words = []
    for place, plan in enumerate(plans):
        causes = list(plan["seconds"])
        more = numpy.array([plan["seconds"][cause] - plans[best]["seconds"][cause] for cause in causes])
        enough = (held[place] <= limit).nonzero()[0]
        words.append("too large" if not len(enough) else f"ZeRO-{enough[0]}" if enough[0] else "best" if place == best
                     else "tie" if steps[place] / steps[best] - 1 <= 0.01 else causes[more.argmax()])
    same = [numpy.array([run["device"] == plan["device"] and run["devices"] * 2 >= plan["devices"]
                         and (run["tp"] <= run["per_node"]) is (plan["tp"] <= plan["per_node"]) for run in runs])
            for plan in plans]
    return [[word, each.sum()] for word, each in zip(words, same)]


@right("10.2", "sorted first, lists")
def reading_in_order(plans, limit, runs):
    order = sorted(range(len(plans)), key=lambda place: sum(plans[place]["seconds"].values()))
    return [list(dict(zip(order, my_reading([plans[place] for place in order], limit, runs)))[place])
            for place in range(len(plans))]


CUT = ("optimizer_state", "gradients", "parameters")


def held_at(plan, zero, cut=lambda kind, plan, zero: kind in CUT[plan["zero"]:zero]):
    return sum(size / (plan["dp"] if cut(kind, plan, zero) else 1) for kind, size in plan["memory"].items())


def step_of(plan):
    return sum(plan["seconds"].values())


def reading(plans, limit, runs, held=held_at, fits=True, tie=1.01, adds=lambda its, best: its - best, helps=True,
            device=True, many=lambda run, plan: 2 * run["devices"] >= plan["devices"],
            tp=lambda run, plan: (run["tp"] > run["per_node"]) == (plan["tp"] > plan["per_node"])):
    best = min((plan for plan in plans if not fits or held(plan, 0) <= limit), key=step_of)
    found = []
    for plan in plans:
        enough = [zero for zero in (1, 2, 3) if zero > plan["zero"] and held(plan, zero) <= limit]
        if plan is best:
            word = "best"
        elif held(plan, 0) > limit:
            word = f"ZeRO-{enough[0]}" if enough and helps else "too large"
        elif step_of(plan) <= tie * step_of(best):
            word = "tie"
        else:
            word = max(plan["seconds"], key=lambda cause: adds(plan["seconds"][cause], best["seconds"][cause]))
        found.append((word, sum((run["device"] == plan["device"] or not device) and many(run, plan) and tp(run, plan)
                                for run in runs)))
    return found


READINGS = [wrong("10.2", says)(lambda *asked, rules=rules: reading(*asked, **rules)) for rules, says in (
    ({"fits": False}, "the shortest step of all is taken for the best: a plan that does not fit is none"),
    ({"tie": 1.0}, "ties are not told: a step that is at most 1 % longer than the best"),
    ({"tie": 1.1}, "a tenth is taken for a tie: it is 1 %"),
    ({"adds": lambda its, best: its},
     "that is the plan's largest cause: asked is the one that adds most to the best's"),
    ({"adds": lambda its, best: its / best if best else its * 1e9},
     "that is the cause that has grown by the largest factor: asked is the one that adds most seconds"),
    ({"adds": lambda its, best: best - its}, "that is the cause in which the best plan is worse: turn the difference"),
    ({"helps": False}, "what would help is not told: which ZeRO stage makes a plan fit that is too large?"),
    ({"held": lambda plan, zero: held_at(plan, zero, lambda kind, plan, zero: kind in CUT[zero - 1:zero] and zero)},
     "each ZeRO stage divides one kind alone: stages add up"),
    ({"held": lambda plan, zero: held_at(plan, zero, lambda kind, plan, zero: kind in CUT[:zero])},
     "what the plan's own ZeRO stage divides is divided again: it is divided in the plan's numbers"),
    ({"held": lambda plan, zero: held_at(plan, zero, lambda kind, plan, zero: kind in CUT[::-1][plan["zero"]:zero])},
     "ZeRO's stages are taken in the wrong order: the optimiser's state first, then gradients, then parameters"),
    ({"held": lambda plan, zero: sum(plan["memory"].values()) / (plan["dp"] if zero else 1)},
     "all kinds are divided by dp: ZeRO divides no activations"),
    ({"device": False}, "runs on other devices are counted"),
    ({"many": lambda run, plan: True}, "runs on far fewer devices are counted: at least half as many are asked"),
    ({"many": lambda run, plan: run["devices"] >= plan["devices"]},
     "runs on half as many devices are left out: at least half as many will do"),
    ({"many": lambda run, plan: run["devices"] == plan["devices"]},
     "only runs on as many devices are counted: at least half as many will do"),
    ({"tp": lambda run, plan: True}, "tp inside a node is taken for tp beyond it"),
    ({"tp": lambda run, plan: run["tp"] == plan["tp"]},
     "only runs with the same tp are counted: asked is whether it is inside a node, or beyond it"))]


@wrong("10.2", "expected a list of")
def reading_of_the_best_alone(*asked):
    return my_reading(*asked)[:1]


@wrong("10.2", "it uses course_lib.grading")
def reading_of_the_judge(*asked):
    from course_lib.grading.registry import exercise

    return exercise("10.2").solve(*asked)


def plans_read(inputs, answers):
    plans, limit, runs = inputs[0]
    steps = [sum(plan["seconds"].values()) for plan in plans]
    held = [sum(plan["memory"].values()) for plan in plans]
    names = ["dp{dp} tp{tp} pp{pp}".format(**plan) for plan in plans]
    words = [f'("{word}", {count})' for word, count in answers[0]]
    more = plans[1]["seconds"]["tp"] - plans[0]["seconds"]["tp"]
    less = plans[3]["memory"]["gradients"] * (1 - 1 / plans[3]["dp"])
    inside = [run["devices"] for run in runs if run["device"] == "H100"]
    return [
        f"With limit {limit} and runs on {inside[0]}, {inside[1]} and {inside[2]} H100",
        f"{names[0]} takes {steps[0]:g} s and holds {held[0]} GiB, {words[0]}",
        f"{names[1]} takes {steps[1]:g} s, tp adds {more:g} s of them, {words[1]}",
        f"{names[2]} takes {steps[2]:g} s and holds {held[2]} GiB, {words[2]}",
        f"{names[3]} takes {steps[3]:g} s and holds {held[3]} GiB, with ZeRO 2 {less:g} GiB less, {words[3]}"]


TEXT_10_2 = [
    term("10.2", "a plan has to fit", "in plans if held(plan, 0) <= limit", "in plans"),
    term("10.2", "ties are told", "1.01 * step(best)", "step(best)"),
    term("10.2", "at most 1 %", "1.01 * step(best)", "1.1 * step(best)"),
    term("10.2", "what adds most to the best plan's", " - best[\"seconds\"][cause]", ""),
    term("10.2", "most seconds, not the largest factor", " - best[\"seconds\"][cause]",
         " / max(best[\"seconds\"][cause], 1e-9)"),
    term("10.2", "ZeRO 1 divides the optimiser's state", "(\"optimizer_state\", \"gradients\",",
         "(\"gradients\", \"\","),
    term("10.2", "ZeRO 3 the parameters", "\"parameters\")", "\"\")"),
    term("10.2", "as well", "cut[plan[\"zero\"] : zero]", "cut[zero - 1 : zero]"),
    term("10.2", "by dp", "plan[\"dp\"] if kind", "plan[\"tp\"] if kind"),
    term("10.2", "what its own stage divides is divided already", "cut[plan[\"zero\"] : zero]", "cut[:zero]"),
    term("10.2", "the lowest stage", "enough[0]", "enough[-1]"),
    term("10.2", "the same device", "run[\"device\"] == plan[\"device\"] and ", ""),
    term("10.2", "at least half as many devices", " and 2 * run[\"devices\"] >= plan[\"devices\"]", ""),
    term("10.2", "half as many will do", "2 * run[\"devices\"]", "run[\"devices\"]"),
    term("10.2", "tp inside a node, or beyond", " and beyond[0] == beyond[1]", ""),
    example("10.2", plans_read)]


# ---- 10.3 my_layout_under_cap
@right("10.3", "k solved for, not tried out")
def cap_solved_for_k(num_devices, per_node, num_layers, batch_rows, G, A, I, cap, c):
    best = None
    for t in range(1, per_node + 1):
        for p in range(1, num_layers + 1):
            if per_node % t or num_layers % p or num_devices % (t * p) or batch_rows % (num_devices // (t * p)):
                continue
            dp, L = num_devices // (t * p), num_layers // p
            m = batch_rows // dp

            def held(k, t=t, p=p, dp=dp, L=L, m=m):
                return (G * (4 + 12 / dp) * L + min(p, m) * ((L - k) * A + k * I) + (A if k else 0)) / t
            least = next((k for k in (0, max(1, math.floor(
                (held(1) * t + min(p, m) * (A - I) - cap * t) / (min(p, m) * (A - I)))) - 1) if 0 <= k <= L
                and held(k) <= cap), None)
            while least is None or (least < L and held(least) > cap):
                least = 1 if least is None else least + 1
            if least <= L and held(least) <= cap:
                step = (m + p - 1) * (3 * L + least) * (1 + c * (t - 1)) / t
                best = min(best or (step, t, p, least), (step, t, p, least))
    return list(best[1:])


def cap_by_numpy(num_devices, per_node, num_layers, batch_rows, G, A, I, cap, c):
    best = (math.inf, 0, 0, 0)
    for stages in filter(lambda p: num_layers % p == 0, range(1, num_layers + 1)):
        for tp in filter(lambda t: per_node % t == 0, range(1, per_node + 1)):
            dp, rest = divmod(num_devices, tp * stages)
            if rest or batch_rows % dp:
                continue
            own, m = num_layers // stages, batch_rows // dp
            k = numpy.arange(own + 1)
            held = (G * own * (4 + 12 / dp) + min(stages, m) * (A * (own - k) + I * k) + A * (k > 0)) / tp
            if (held <= cap).any():
                least = k[held <= cap].min()
                best = min(best, ((m + stages - 1) * (3 * own + least) * (1 + c * (tp - 1)) / tp, tp, stages, least))
    return numpy.array(best[1:], dtype=numpy.int16)


RIGHT_10_3 = [
    right("10.3", "all k at once, numpy's whole numbers")(lambda *asked: cap_by_numpy(*asked)),
    right("10.3", "numpy's whole numbers")(lambda *asked: numpy.array(my_layout_under_cap(*asked)))]


def best_under_cap(num_devices, per_node, num_layers, batch_rows, G, A, I, cap, c,  # noqa: E741
                   flight=min, again=lambda k: k > 0, recomputed=lambda L: range(L + 1), optimizer=lambda dp: 12 / dp,
                   forwards=1, filling=True, messages=lambda t: t - 1, stages=lambda p: True, tps=lambda t: True,
                   choose=min):
    found = []
    for t in (t for t in range(1, per_node + 1) if per_node % t == 0 and tps(t)):
        for p in (p for p in range(1, num_layers + 1) if num_layers % p == 0 and stages(p)):
            if num_devices % (t * p) or batch_rows % (num_devices // (t * p)):
                continue
            dp, L = num_devices // (t * p), num_layers // p
            m = batch_rows // dp
            for k in recomputed(L):
                kept = flight(p, m) * ((L - k) * A + k * I) + again(k) * A
                if (G * (4 + optimizer(dp)) * L + kept) / t <= cap:
                    step = (m + filling * (p - 1)) * (3 * L + k * forwards) * (1 + c * messages(t)) / t
                    found.append((step, t, p, k))
    return choose(found)[1:]


@wrong("10.3", "it recomputes nothing, or whole stages: a few layers of each may do, and take a shorter step")
def layout_that_keeps_everything(*asked):
    return best_under_cap(*asked, recomputed=lambda L: [0])


@wrong("10.3", "it recomputes nothing, or whole stages: a few layers of each may do, and take a shorter step")
def layout_of_all_or_nothing(*asked):
    return best_under_cap(*asked, recomputed=lambda L: [0, L])


@wrong("10.3", "it counts all m micro-batches in flight, as in GPipe: 1F1B has min(p, m)")
def layout_under_cap_for_gpipe(*asked):
    return best_under_cap(*asked, flight=lambda p, m: m)


@wrong("10.3", "it counts one micro-batch in flight: stage 0 has min(p, m) of them")
def layout_of_one_micro_batch(*asked):
    return best_under_cap(*asked, flight=lambda p, m: 1)


@wrong("10.3", "the layer that is made again is left out: while it goes backward, one layer holds all of A")
def layout_without_room_to_recompute(*asked):
    return best_under_cap(*asked, again=lambda k: 0)


@wrong("10.3", "16 bytes a parameter are counted: the optimiser's 12 are dealt out over dp")
def layout_without_zero(*asked):
    return best_under_cap(*asked, optimizer=lambda dp: 12)


@wrong("10.3", "this would be the shortest step if memory were without end")
def layout_without_a_cap(*asked):
    return best_under_cap(*asked[:7], math.inf, *asked[8:])


@wrong("10.3", "a pipeline is not for nothing: it fills and drains in p - 1 micro-batches' time")
def layout_of_a_free_pipeline(*asked):
    return best_under_cap(*asked, filling=False)


@wrong("10.3", "it takes recomputing for nothing: each of the k layers goes forward once more")
def layout_of_free_recomputing(*asked):
    return best_under_cap(*asked, forwards=0)


UNDER_CAP = [wrong("10.3", says)(answer) for answer, says in (
    (lambda *asked: best_under_cap(*asked, recomputed=lambda L: [L]),
     "every layer is recomputed, where some could be kept"),
    (lambda *asked: best_under_cap(*asked[:6], 0, *asked[7:]),
     "inputs of recomputed layers are left out: they are kept for each micro-batch in flight"),
    (lambda *asked: best_under_cap(*asked[:5], 0, 0, *asked[7:]), "activations are left out"),
    (lambda *asked: best_under_cap(*asked[:8], 0), "tp is taken for nothing: each rank more of it costs c"),
    (lambda *asked: best_under_cap(*asked, tps=lambda t: t == asked[1]),
     "tp as far as the node goes is not always best: where less of it fits, it costs less"),
    (lambda *asked: best_under_cap(*asked, choose=max), "this is the longest step of all that fit"),
    (lambda *asked: best_under_cap(*asked, optimizer=lambda dp: 12 / asked[0]),
     "the optimiser's 12 bytes are dealt out over all devices: over dp they are, where t and p have cut them already"),
    (lambda *asked: best_under_cap(*asked, again=lambda k: k),
     "every recomputed layer holds all of A at once: they are made again one at a time, A in all"),
    (lambda *asked: best_under_cap(*asked[:7], asked[7] * 2**30 / 1e9, *asked[8:]),
     "the cap is taken for GiB: a GB is 1e9 bytes"),
    (lambda *asked: best_under_cap(*asked, forwards=3),
     "recomputing is priced as a whole layer, 3: it is one more forward pass, 1"),
    (lambda *asked: best_under_cap(*asked, forwards=1 / 3),
     "k layers are taken for k/3: in the forward time of a layer each recomputed one takes 1 more"),
    (lambda *asked: best_under_cap(*asked, messages=lambda t: t),
     "messages are counted for tp 1 too: each rank more costs c, which makes c (t - 1)"),
    (lambda *asked: best_under_cap(*asked, stages=lambda p: p & (p - 1) == 0),
     "only powers of two are looked at: every p that divides the layers is a layout"),
    (lambda *asked: best_under_cap(*asked, choose=lambda found: min(found, key=lambda each: (each[3], each[0]))),
     "that is the layout which recomputes least: the shortest step may recompute more on fewer stages or with less tp"),
    (lambda *asked: best_under_cap(*asked, flight=lambda p, m: p),
     "p micro-batches are counted in flight where a replica has only m: min(p, m)"),
    (lambda *asked: best_under_cap(*asked, again=lambda k: 1),
     "the layer that is computed again is counted where none is: + A only where k is not 0"))]


@wrong("10.3", "it uses course_lib.grading")
def layout_of_the_judge(*asked):
    from course_lib.grading.chapters import load

    costs_of = load(10, "judge_plans").costs_of
    return min((step, layout) for layout, (held, step) in costs_of(*asked).items() if held <= asked[7])[1]


@wrong("10.3", "expected a divisor of the 2 devices of a node")
def layout_beyond_the_node(num_devices, per_node, *rest):
    return 2 * per_node, 1, 0


def layout_under_cap(inputs, answers):
    from course_lib.grading.chapters import load

    held, step = load(10, "judge_plans").costs_of(*inputs[0])[tuple(answers[0])]
    asked = "{} devices, {} a node, {} layers, {} rows, G {}, A {}, I {}, cap {}, c {}:".format(*inputs[0])
    return [asked, "({}, {}, {}) holds".format(*answers[0]), f"= {held:g} and takes (4 + 1) * 6 * 1.1 / 2 = {step:g}"]


TEXT_10_3 = [
    term("10.3", "tp stays in a node", "range(1, per_node + 1) if per_node % t == 0", "range(1, num_devices + 1)"),
    term("10.3", "t divides the node", " if per_node % t == 0", ""),
    term("10.3", "p divides the layers", " if num_layers % p == 0", ""),
    term("10.3", "t p divides the devices", "num_devices % (t * p) or ", ""),
    term("10.3", "dp divides the rows", " or batch_rows % (num_devices // (t * p))",
         " or batch_rows < num_devices // (t * p)"),
    term("10.3", "k of its layers, not all or nothing", "range(L + 1)", "(0, L)"),
    term("10.3", "k up to all of them", "range(L + 1)", "range(L)"),
    term("10.3", "min(p, m) have to be kept", "min(p, m)", "p"),
    term("10.3", "as many as there are stages, not all", "min(p, m)", "m"),
    term("10.3", "the layer that is made again", " + (A if k else 0)", ""),
    term("10.3", "only where there is one", "(A if k else 0)", "A"),
    term("10.3", "a recomputed layer keeps its input", " + k * I", ""),
    term("10.3", "ZeRO 1 deals out the 12 bytes", "12 / dp", "12"),
    term("10.3", "not the 4", "(4 + 12 / dp)", "16 / dp"),
    term("10.3", "t cuts all of it", "kept) / t <= cap", "kept) <= cap"),
    term("10.3", "at most the cap", "<= cap", "< cap"),
    term("10.3", "it has to fit", "<= cap", "<= 100 * cap"),
    term("10.3", "a pipeline has to fill", "(m + p - 1)", "m"),
    term("10.3", "recomputing takes time", "(3 * L + k)", "3 * L"),
    term("10.3", "three forward times for a layer", "(3 * L + k)", "(2 * L + k)"),
    term("10.3", "each rank more of tp costs c", " * (1 + c * (t - 1))", ""),
    term("10.3", "each rank more than one", "c * (t - 1)", "c * t"),
    term("10.3", "the shortest step", "min(found)", "max(found)"),
    example("10.3", layout_under_cap)]


# ---- 10.4 my_better_layout
@right("10.4", "asks `fits` first, and adds up Fractions")
def better_by_fractions(layout, seconds, batch_rows, per_node, slower, fits):
    devices = layout["dp"] * layout["tp"] * layout["pp"]

    def took(its):
        wire = [Fraction(slower) if each["tp"] > per_node else 1 for each in (its, layout)]
        sent = Fraction(seconds["tp"]) * (its["tp"] - 1) / (layout["tp"] - 1) * wire[0] / wire[1]
        wire = [Fraction(slower) * per_node / (per_node // each["tp"] or 1) if each["dp"] * each["tp"] > per_node else 1
                for each in (its, layout)]
        waits = 1 + Fraction((its["pp"] - 1) * its["dp"], batch_rows)
        reduced = Fraction(seconds["dp"]) * (its["dp"] - 1) / (layout["dp"] - 1) * wire[0] / wire[1]
        return (Fraction(seconds["matmul"]) + sent) * waits + reduced

    every = ({"dp": dp, "tp": tp, "pp": devices // dp // tp} for dp in range(1, devices + 1) if devices % dp == 0
             for tp in range(1, devices // dp + 1) if devices // dp % tp == 0)
    return min(filter(fits, every), key=took)


RIGHT_10_4 = [
    right("10.4", "numpy's whole numbers")(lambda *asked: of_each(my_better_layout(*asked), numpy.int64)),
    right("10.4", "keys in another order")(lambda *asked: dict(sorted(my_better_layout(*asked).items(), reverse=True)))]


def one_wire_everywhere(n, stride, per_node, slower):
    return 1


def ring_wire(n, stride, per_node, slower):
    """How much longer than inside a node."""
    return slower * per_node / max(1, per_node // stride) if n * stride > per_node else 1


def predicted_best(layout, seconds, batch_rows, per_node, slower, fits, tensor=lambda tp: tp - 1,
                   data=lambda dp: dp - 1, pipeline=lambda pp, dp, rows: (pp - 1) * dp / rows, wire=ring_wire):
    devices = math.prod(layout.values())

    def sent(tp):
        return tensor(tp) * ring_wire(tp, 1, per_node, slower)

    def reduced(dp, tp):
        return data(dp) * wire(dp, tp, per_node, slower)

    found = []
    sizes = [size for size in range(1, devices + 1) if devices % size == 0]
    for tp, pp in ((tp, pp) for tp in sizes for pp in sizes if devices % (tp * pp) == 0):
        its = {"dp": devices // (tp * pp), "tp": tp, "pp": pp}
        if fits(its):
            work = seconds["matmul"] + seconds["tp"] / sent(layout["tp"]) * sent(tp)
            step = work * (1 + pipeline(pp, its["dp"], batch_rows))
            reduction = seconds["dp"] / reduced(layout["dp"], layout["tp"]) * reduced(its["dp"], tp)
            found.append((step + reduction, len(found), its))
    return min(found)[-1]


@wrong("10.4", "the bubble is taken to depend on pp alone: more replicas leave each fewer micro-batches, m = B/dp")
def better_with_the_same_micro_batches(layout, *rest):
    return predicted_best(layout, *rest, pipeline=lambda pp, dp, rows: (pp - 1) * layout["dp"] / rows)


@wrong("10.4", "the bubble is left out: whoever has more stages waits longer for the first micro-batch")
def better_without_a_bubble(*asked):
    return predicted_best(*asked, pipeline=lambda pp, dp, rows: 0)


@wrong("10.4", "tp beyond a node goes through the network, `slower` times as long")
def better_over_a_fast_network(layout, seconds, batch_rows, per_node, slower, fits):
    return predicted_best(layout, seconds, batch_rows, per_node, 1, fits)


@wrong("10.4", "tp's time is taken to depend on (tp - 1)/tp only: with larger tp a rank also has more layers and rows "
       "to pass, so it is tp - 1")
def better_with_messages_of_one_layer(*asked):
    return predicted_best(*asked, tensor=lambda tp: (tp - 1) / tp)


@wrong("10.4", "dp's time is taken to depend on (dp - 1)/dp only: with more replicas a rank also has more of the "
       "gradients, 1/(tp pp) = dp/N, so it is dp - 1")
def better_with_equal_gradients(*asked):
    return predicted_best(*asked, data=lambda dp: (dp - 1) / dp)


@wrong("10.4", "dp's ring is taken to have the same wire in every layout: it has a card for each of its ranks in a "
       "node, and inside a node it needs none")
def better_with_one_wire(*asked):
    return predicted_best(*asked, wire=one_wire_everywhere)


@wrong("10.4", "dp's ring is taken to have all cards of a node: it has one for each of its ranks there, and tp such "
       "rings share the node")
def better_with_all_cards(*asked):
    return predicted_best(*asked, wire=lambda n, stride, per_node, slower: slower if n * stride > per_node else 1)


@wrong("10.4", "this would be the shortest step if memory were without end: ask `fits`")
def better_without_memory(layout, seconds, batch_rows, per_node, slower, fits):
    def layouts(its):
        return batch_rows % its["dp"] == 0 and its["pp"] <= 32

    return predicted_best(layout, seconds, batch_rows, per_node, slower, layouts)


def better_by_some_causes(*causes):
    def answer(layout, seconds, *rest):
        some = {cause: took if cause in causes or cause == "matmul" else 0 for cause, took in seconds.items()}
        pipeline = {} if "bubble" in causes else {"pipeline": lambda pp, dp, rows: 0}
        return predicted_best(layout, some, *rest, **pipeline)

    return answer


CAUSES = [wrong("10.4", says)(answer) for answer, says in (
    (better_by_some_causes("bubble", "dp"), "tp's messages are left out"),
    (better_by_some_causes("bubble", "tp"), "dp's messages are left out"),
    (lambda layout, seconds, *rest: better_by_some_causes(max(("tp", "bubble", "dp"), key=seconds.get))(
        layout, seconds, *rest),
     "the seconds of the run are those of every layout: only one cause is looked at, the largest"))]


@wrong("10.4", "this is the layout of the run: another one that fits takes less")
def no_better_one(layout, *rest):
    return layout


@wrong("10.4", "that is 64 devices, and there are 4")
def better_on_fewer_devices(layout, *rest):
    return {"dp": 1, "tp": 8, "pp": 8}


@wrong("10.4", "it uses course_lib.planner")
def better_by_the_library(layout, *rest):
    from course_lib.planner import plan

    return plan(layout)


def better_by(asked, bubble=lambda matmul, tensor: matmul + tensor, tp_share=lambda tp: tp - 1,
              dp_share=lambda dp: dp - 1, turns=lambda pp: pp - 1, undone=True,
              micro_batches=lambda rows, dp: rows / dp):
    layout, seconds, batch_rows, per_node, slower, fits = asked
    devices, found = math.prod(layout.values()), []

    def reach(tp):
        return tp_share(tp) * ring_wire(tp, 1, per_node, slower)

    def reduced(dp, tp):
        return dp_share(dp) * ring_wire(dp, tp, per_node, slower)

    of_run = reach(layout["tp"]) if undone else tp_share(layout["tp"])
    sizes = [size for size in range(1, devices + 1) if devices % size == 0]
    for tp, pp in ((tp, pp) for tp in sizes for pp in sizes if devices % (tp * pp) == 0):
        its = {"dp": devices // (tp * pp), "tp": tp, "pp": pp}
        tensor = seconds["tp"] / of_run * reach(tp)
        idle = bubble(seconds["matmul"], tensor) * turns(pp) / micro_batches(batch_rows, its["dp"])
        reduction = seconds["dp"] / reduced(layout["dp"], layout["tp"]) * reduced(its["dp"], tp)
        found.append((seconds["matmul"] + tensor + idle + reduction, tp, pp, its))
    return next(its for *_, its in sorted(found, key=lambda each: each[:3]) if fits(its))


BY_OTHER_RULES = [wrong("10.4", says)(answer) for answer, says in (
    (lambda *asked: better_by(asked, bubble=lambda matmul, tensor: matmul),
     "the bubble is that of matmul alone: a stage that waits, waits for tp's messages too, (matmul + tp) (pp - 1)/m"),
    (lambda *asked: better_by(asked, tp_share=lambda tp: tp, dp_share=lambda dp: dp),
     "tp's and dp's seconds are taken in proportion to tp and dp: one alone sends nothing, so it is tp - 1 and dp - 1"),
    (lambda *asked: better_by(asked, tp_share=lambda tp: tp),
     "tp's seconds are taken in proportion to tp: one alone sends nothing, so it is tp - 1"),
    (lambda *asked: better_by(asked, dp_share=lambda dp: dp),
     "dp's seconds are taken in proportion to dp: one alone sends nothing, so it is dp - 1"),
    (lambda *asked: better_by(asked, turns=lambda pp: pp),
     "a pipeline of pp stages is taken to wait for pp turns: it fills and drains in pp - 1"),
    (lambda *asked: better_by(asked, undone=False),
     "where the run's own tp is beyond a node, `slower` is in its seconds already: divide by it first"),
    (lambda layout, seconds, *rest: better_by((layout, seconds, *rest), bubble=lambda matmul, tensor: (
        seconds["bubble"] / (layout["pp"] - 1) / layout["dp"] * rest[0] if layout["pp"] > 1 else 0)),
     "the bubble is scaled from the run's own, which is 0 at pp 1: it is (matmul + tp) (pp - 1)/m"),
    (lambda *asked: better_by(asked, micro_batches=lambda batch_rows, dp: batch_rows),
     "all rows of the batch are taken for the micro-batches of each replica: m = B/dp"))]


@wrong("10.4", "KeyError")
def better_by_what_fits_is_made_of(*asked):
    return asked[-1].__globals__["best"](*asked[-1].__closure__[0].cell_contents)


def better_layout(inputs, answers):
    from course_lib.grading.chapters import load

    *asked, _ = inputs[0]
    run, seconds, batch_rows, per_node, slower = asked
    seconds_of = load(10, "judge_plans").seconds_of
    its = {name: seconds_of(layout, *asked) for name, layout in (
        ("best", answers[0]), ("tp 4", {"dp": 1, "tp": 4, "pp": 1}), ("dp 4", {"dp": 4, "tp": 1, "pp": 1}))}
    total = {name: sum(by_cause.values()) for name, by_cause in its.items()}
    return [
        f"A run on 4 devices, {per_node} a node, slower {slower:g}, {batch_rows} rows, with "
        + ", ".join(f"{axis} {size}" for axis, size in run.items())
        + ": " + ", ".join(f"{cause} {seconds[cause]:g} s" for cause in ("matmul", "tp", "bubble", "dp")),
        f"= {its['tp 4']['tp']:g} s for tp, beyond the node, {total['tp 4']:g} s in all",
        f"for dp, whose ring has both cards of a node, {total['dp 4']:g} s in all; every layout fits, and "
        + ", ".join(f"{axis} {answers[0][axis]}" for axis in run)
        + f" is the fastest: 4 + 0.2 + 4.2 / 8 + 0 = {total['best']:g} s"]


TEXT_10_4 = [
    term("10.4", "in proportion to tp - 1", "* reach(tp, 1)", "* reach(tp + 1, 1)"),
    term("10.4", "beyond a node `slower` times that", "slower * per_node", "per_node"),
    term("10.4", "the run's own, too", "reach(layout[\"tp\"], 1)", "(layout[\"tp\"] - 1)"),
    term("10.4", "stages wait", "idle = work * (pp - 1)", "idle = 0 * (pp - 1)"),
    term("10.4", "for pp - 1 turns", "(pp - 1) *", "pp *"),
    term("10.4", "of matmul and tp", "idle = work", "idle = seconds[\"matmul\"]"),
    term("10.4", "m = B/dp micro-batches", "* its[\"dp\"] / batch_rows", "/ batch_rows"),
    term("10.4", "in proportion to dp - 1", "* reach(its[\"dp\"], tp)", "* reach(its[\"dp\"] + 1, tp)"),
    term("10.4", "a card for each rank of the ring in a node", " / cards", ""),
    term("10.4", "at least 1", "max(1, per_node // stride)", "per_node / stride"),
    term("10.4", "dp's ring may lie inside a node", "n * stride > per_node",
         "n * stride > (per_node if stride == 1 else 1)"),
    term("10.4", "the run's own ring of dp, too", "reach(layout[\"dp\"], layout[\"tp\"])", "(layout[\"dp\"] - 1)"),
    term("10.4", "gradients are sent", "work + idle + reduction", "work + idle"),
    term("10.4", "it has to fit", " if fits(its))", ")"),
    example("10.4", better_layout)]


# ---- 10.5 my_cheapest_run
def plans_that_fit(look, offers, layers, batch_rows):
    for name, offer in offers.items():
        for nodes in range(int(offer["nodes"]), 0, -1):
            for tp in (8, 4, 2, 1):
                for pp in (pp for pp in range(1, layers + 1) if layers % pp == 0 and 8 * nodes % (tp * pp) == 0):
                    if batch_rows % (8 * nodes // tp // pp) == 0:
                        for recompute in (False, True):
                            plan = {"offer": name, "nodes": nodes, "tp": tp, "pp": pp, "recompute": recompute}
                            days, dollars, held = look(plan)
                            if not held > offer["memory"]:
                                yield days, dollars, plan


@right("10.5", "a price for each day, found by bisection (Lagrange)")
def run_by_lagrange(look, offers, parameters, layers, hidden, tokens, batch_rows, total_tokens, deadline):
    plans = list(plans_that_fit(look, offers, layers, batch_rows))

    def best(per_day):
        return min(plans, key=lambda each: (each[1] + per_day * each[0], each[0]))

    low, high = 0.0, 1e12
    if best(low)[0] <= deadline:
        return [(best(low)[2], 1)]
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (low, middle) if best(middle)[0] <= deadline else (middle, high)
    early, late = best(high), best(low)
    x = numpy.float64((deadline - early[0]) / (late[0] - early[0]))
    return [(early[2], 1 - x), (late[2], x)]


@right("10.5", "along the lower hull of all plans, turning left only")
def run_along_the_hull(look, offers, parameters, layers, hidden, tokens, batch_rows, total_tokens, deadline):
    hull = []
    for point in sorted(plans_that_fit(look, offers, layers, batch_rows), key=lambda each: each[:2]):
        while len(hull) > 1 and ((hull[-1][0] - hull[-2][0]) * (point[1] - hull[-2][1])
                                 <= (hull[-1][1] - hull[-2][1]) * (point[0] - hull[-2][0])):
            hull.pop()
        if not hull or point[1] < hull[-1][1]:
            hull.append(point)
    late = next((at for at, each in enumerate(hull) if each[0] > deadline), None)
    if late is None:
        return ((hull[-1][2], Fraction(1)),)
    a, b = hull[late - 1 : late + 1]
    share = Fraction(deadline - a[0]) / Fraction(b[0] - a[0])
    return ((a[2], 1 - share), (b[2], share))


RIGHT_10_5 = [
    right("10.5", "recompute as a truth value, tuples")(lambda look, *asked: tuple(
        (plan | {"recompute": bool(plan["recompute"])}, numpy.float64(share))
        for plan, share in my_cheapest_run(look, *asked))),
    right("10.5", "in three parts where two would do")(lambda *asked: [
        (plan, part) for plan, share in my_cheapest_run(*asked) for part in (share / 2, share / 2)])]


def every_plan(look, offers, layers, batch_rows):
    for name, offer in offers.items():
        for nodes in range(1, offer["nodes"] + 1):
            for tp, pp in ((tp, pp) for tp in (1, 2, 4, 8) for pp in range(1, layers + 1) if layers % pp == 0):
                if 8 * nodes % (tp * pp) == 0 and batch_rows % (8 * nodes // (tp * pp)) == 0:
                    for recompute in (0, 1):
                        plan = {"offer": name, "nodes": nodes, "tp": tp, "pp": pp, "recompute": recompute}
                        days, dollars, held = look(plan)
                        yield days, dollars, held <= offer["memory"], plan


@wrong("10.5", "one plan is looked for that does it all: a run may begin under one that is cheaper and too slow, and "
       "end under one that is faster")
def run_of_one_plan(look, offers, parameters, layers, hidden, tokens, batch_rows, total_tokens, deadline):
    plans = [each for each in every_plan(look, offers, layers, batch_rows) if each[2] and each[0] <= deadline]
    return [(min(plans, key=lambda each: each[1])[3], 1.0)]


@wrong("10.5", "it has to end by the date: more nodes for a larger part of the tokens")
def run_without_a_date(look, offers, parameters, layers, hidden, tokens, batch_rows, total_tokens, deadline):
    plans = [each for each in every_plan(look, offers, layers, batch_rows) if each[2]]
    return [(min(plans, key=lambda each: each[1])[3], 1.0)]


@wrong("10.5", "1 node of new, tp8 pp1: the same nodes take less time under another layout")
def run_of_one_layout(look, offers, parameters, layers, hidden, tokens, batch_rows, total_tokens, deadline):
    plans = [each for each in every_plan(look, offers, layers, batch_rows)
             if each[2] and each[0] <= deadline and each[3]["tp"] == 8]
    return [(min(plans, key=lambda each: each[1])[3], 1.0)]


@wrong("10.5", "that is the fastest run: until the date there is time for a cheaper one")
def run_of_the_fastest(look, offers, parameters, layers, hidden, tokens, batch_rows, total_tokens, deadline):
    plans = [each for each in every_plan(look, offers, layers, batch_rows) if each[2]]
    return [(min(plans, key=lambda each: each[0])[3], 1.0)]


@wrong("10.5", "recomputing, more stages or more tp hold less")
def run_without_memory(look, offers, parameters, layers, hidden, tokens, batch_rows, total_tokens, deadline):
    endless = {name: {**offer, "memory": math.inf} for name, offer in offers.items()}
    return my_cheapest_run(look, endless, parameters, layers, hidden, tokens, batch_rows, total_tokens, deadline)


@wrong("10.5", "each plan sees half of the tokens: the late one, which is cheaper, sees as many as the date allows, x "
       "= (deadline - days)/(late days - days)")
def run_of_two_halves(look, *asked):
    run = my_cheapest_run(look, *asked)
    return [(plan, 1 / len(run)) for plan, _ in run]


@wrong("10.5", "the shares add up to 2")
def run_of_two_wholes(look, *asked):
    return [(plan, 1.0) for plan, _ in my_cheapest_run(look, *asked)]


def cheapest_of(found, asked, used=lambda plan: True, mixed=lambda early, late: (early, late),
                share=lambda x, late_days, deadline: x):
    """The cheapest run of these plans that fit, of at most two; the fastest where none of them is in time."""
    deadline, front = asked[-1], []
    for days, dollars, fits, plan in sorted(found, key=lambda each: each[:2]):
        if fits and used(plan) and (not front or dollars < front[-1][1]):
            front.append((days, dollars, plan))
    early = [each for each in front if each[0] <= deadline] or front[:1]
    late = [each for each in front if each[0] > deadline and each not in early]
    runs = [(early[-1][1], [(early[-1][2], 1.0)])]
    first, second = mixed(early, late)
    for days, dollars, plan in first:
        for more, fewer, slow in second:
            x = share((deadline - days) / (more - days), more, deadline)
            runs.append((x * fewer + (1 - x) * dollars, [(slow, x), (plan, 1 - x)]))
    return min(runs, key=lambda run: run[0])[1]


def cheapest_by(**rules):
    def answer(look, offers, parameters, layers, hidden, tokens, batch_rows, *rest):
        return cheapest_of(every_plan(look, offers, layers, batch_rows), rest, **rules)

    return answer


OTHER_RUNS = [wrong("10.5", says)(answer) for answer, says in (
    (cheapest_by(used=lambda plan: not plan["recompute"]),
     "is there a plan among those that were looked at which fits and is in time? With other nodes, stages or tp, or "
     "recomputing, there is"),
    (cheapest_by(used=lambda plan: plan["nodes"] & (plan["nodes"] - 1) == 0),
     "only powers of two are looked at: other numbers of nodes are plans, too, where replicas divide the rows"),
    (cheapest_by(used=lambda plan: "spot" not in plan["offer"]),
     "spot devices are left out: what their failures cost is in what look says already"),
    (cheapest_by(used=lambda plan: plan["pp"] == 1), "no plan with stages is looked at: pp may be more than 1"),
    (cheapest_by(used=lambda plan: plan["tp"] == 8), "only plans with tp 8 are looked at: less of it sends less"),
    (cheapest_by(mixed=lambda early, late: (early, late[-1:])),
     "only the cheapest of the late plans is tried: together with one that is less late a run may cost less"),
    (cheapest_by(mixed=lambda early, late: (early[:1], late)),
     "only the fastest of all plans is tried for the end: one that is slower and cheaper may do"),
    (cheapest_by(mixed=lambda early, late: (early[-1:], late[:1])),
     "only the two plans right before and behind the date are tried: two others may lie lower, on both sides"),
    (cheapest_by(share=lambda x, late_days, deadline: x * late_days / deadline),
     "these are shares of the days: of the tokens the late plan sees fewer, x = (deadline - days)/(late days - days)"))]


@wrong("10.5", "each offer is looked at by itself: a run may move from one to another")
def run_on_one_offer(look, offers, *asked):
    def cost(run):
        looks = [(look(plan), share) for plan, share in run]
        days, dollars = (sum(share * seen[place] for seen, share in looks) for place in (0, 1))
        return days > asked[-1] * (1 + 1e-9), dollars

    return min((cheapest_by()(look, {name: offer}, *asked) for name, offer in offers.items()), key=cost)


@wrong("10.5", "it uses course_lib.grading")
def run_of_the_judge(look, offers, *asked):
    from course_lib.grading.chapters import load

    cheapest = load(10, "judge_runs").cheapest
    return cheapest(offers, *asked)


def cheapest_run(inputs, answers):
    from course_lib.grading.chapters import load

    offers, *model, deadline = inputs[0]
    run_of = load(10, "judge_runs").run_of
    looks = {plan["offer"]: run_of(plan, {"small": 0.1, "restart": 0.0}, offers[plan["offer"]], *model)
             for plan, _ in answers[0]}
    days, dollars = (sum(share * looks[plan["offer"]][place] for plan, share in answers[0]) for place in (0, 1))
    return [
        "look says {:.0f} days, {:,.0f} dollars for old, {:.0f} days, {:,.0f} dollars for new".format(
            *looks["old"][:2], *looks["new"][:2]),
        f"Deadline {deadline}: half of the tokens under each takes {days:.0f} days, {dollars:,.0f} dollars"]


TEXT_10_5 = [
    term("10.5", "by the date", "each[0] <= deadline", "each[0] <= 2 * deadline"),
    term("10.5", "the cheapest", "run: run[0]", "run: -run[0]"),
    term("10.5", "every offer", "in offers.items():", "in list(offers.items())[:-1]:"),
    term("10.5", "spot devices", "in offers.items():",
         "in ((each, own) for each, own in offers.items() if \"spot\" not in each):"),
    term("10.5", "fewer nodes than there are", "range(1, offer[\"nodes\"] + 1)", "[offer[\"nodes\"]]"),
    term("10.5", "any number of nodes", "range(1, offer[\"nodes\"] + 1)",
         "(2**i for i in range(offer[\"nodes\"].bit_length()))"),
    term("10.5", "tp", "in (1, 2, 4, 8)", "in (1, 2, 4)"),
    term("10.5", "less than a whole node of it", "in (1, 2, 4, 8)", "in (8,)"),
    term("10.5", "stages", "layers % pp == 0", "pp == 1"),
    term("10.5", "any number of them that divides the layers", "layers % pp == 0", "layers % pp == pp & (pp - 1) == 0"),
    term("10.5", "recomputing", "in (0, 1)", "in (0,)"),
    term("10.5", "only where it pays", "in (0, 1)", "in (1,)"),
    term("10.5", "it has to fit", "if held <= offer[\"memory\"]:", "if True:"),
    term("10.5", "to the brim", "held <= offer", "held < offer"),
    term("10.5", "of one plan or of several", "in front[len(early) :]", "in []"),
    term("10.5", "any two, not those beside the date", "in front[len(early) :]", "in front[len(early) :][:1]"),
    term("10.5", "of all that are in time", "in early:", "in early[:1]:"),
    term("10.5", "x of the days", "x = (deadline - days) / (more_days - days)", "x = 0.5"),
    example("10.5", cheapest_run)]


# ---- 10.6 my_leaks
@right("10.6", "a set of what is known, in another order")
def leaks_by_sets(rows, profiles):
    def marks(row):
        setting = tuple(sorted((key, value) for key, value in row.items()
                               if key not in ("id", "source", "split", "software", "metric", "value")))
        address = row["source"]
        for mark in "#@":
            address = address.partition(mark)[0]
        return {address, setting}

    found = []
    for software, made_from in profiles.items():
        known = set().union(*(marks(row) for row in rows if row["split"] == "fitted" or row["id"] in made_from))
        found += [row["id"] for row in rows if row["software"] == software and row["split"] == "test"
                  and marks(row) & known]
    return found[::-1]


@right("10.6", "by a regular expression")
def leaks_by_expression(rows, profiles):
    import re

    by_name = {row["id"]: row for row in rows}
    fitted = [name for name, row in by_name.items() if row["split"] == "fitted"]
    told = {"id", "source", "split", "software", "metric", "value"}

    def linked(name, other):
        a, b = by_name[name], by_name[other]
        return re.split("[@#]", a["source"])[0] == re.split("[@#]", b["source"])[0] or all(
            a[key] == b[key] for key in a.keys() - told)

    return tuple(name for name, row in by_name.items() if name not in fitted
                 and any(linked(name, other) for other in fitted + profiles[row["software"]]))


TOLD = ("id", "source", "split", "software", "metric", "value")


def leaks_by(rows, profiles, document=lambda source: source.partition("#")[0].partition("@")[0],
             run=lambda row: {key: value for key, value in row.items() if key not in TOLD},
             seen=lambda each, row, profiles: each["split"] == "fitted" or each["id"] in profiles[row["software"]]):
    def leaks(row):
        return any((document and document(each["source"]) == document(row["source"])) or (run and run(each) == run(row))
                   for each in rows if seen(each, row, profiles))

    return [row["id"] for row in rows if row["split"] == "test" and leaks(row)]


def fitted_alone(each, row, profiles):
    return each["split"] == "fitted"


LEAKS = [wrong("10.6", says)(lambda *asked, rules=rules: leaks_by(*asked, **rules)) for rules, says in (
    ({"document": lambda source: source},
     "sources are compared as they are cited: without @version and #place two of them may be one document"),
    ({"document": lambda source: source.partition("#")[0]},
     "two versions of one document are taken for two documents: leave out what stands behind @"),
    ({"document": lambda source: source.partition("@")[0]},
     "two places in one document are taken for two documents: leave out what stands behind #"),
    ({"document": lambda source: source.partition("/")[0]},
     "all documents of a site are taken for one: a document is the whole address, without @version and #place"),
    ({"document": lambda source: source.partition("#")[0].partition("@")[0].rpartition("/")[2]},
     "documents of one name are taken for one: a document is the whole address, without @version and #place"),
    ({"document": None}, "documents are not compared: a row leaks if another one of its document was fitted on"),
    ({"run": None}, "runs are not compared: another document may tell a run again that was fitted on"),
    ({"run": lambda row: {key: value for key, value in row.items() if key not in TOLD[:4]}},
     "a run that is told in another metric is taken for another run: compare what was set alone"),
    ({"run": lambda row: [row[key] for key in ("hw", "layers", "hidden", "tp", "pp", "dp")]},
     "runs of one model and layout are taken for one run: everything that was set has to be the same"),
    ({"seen": fitted_alone}, "profiles are left out: what a profile was made from is as good as fitted"),
    ({"seen": lambda each, row, profiles: fitted_alone(each, row, profiles)
      or any(each["id"] in made_from for made_from in profiles.values())},
     "rows are counted that some profile was made from: that of the row's own software counts alone"),
    ({"seen": lambda each, row, profiles: each["id"] in profiles[row["software"]]},
     "rows that constants were fitted on are left out"),
    ({"seen": lambda each, row, profiles: each is not row},
     "a row that is like another test row is said to leak: nobody has fitted on that one"))]


@wrong("10.6", "a profile is compared with the row itself alone: one made from another row of its document leaks, too")
def leaks_of_own_profiles(rows, profiles):
    found = leaks_by(rows, profiles, seen=fitted_alone)
    return [row["id"] for row in rows if row["id"] in found
            or row["split"] == "test" and row["id"] in profiles[row["software"]]]


@wrong("10.6", "expected ids of test rows")
def leaks_on_both_sides(rows, profiles):
    return [row["id"] for row in rows if row["split"] == "fitted"]


@wrong("10.6", "these are the rows that do not leak: those that do are asked")
def rows_that_may_stay(rows, profiles):
    found = my_leaks(rows, profiles)
    return [row["id"] for row in rows if row["split"] == "test" and row["id"] not in found]


@wrong("10.6", "it uses course_lib.grading")
def leaks_of_the_judge(*asked):
    from course_lib.grading.registry import exercise

    return exercise("10.6").solve(*asked)


LEAKS_AS = [right("10.6", words)(lambda *asked, makes=makes: makes(my_leaks(*asked))) for words, makes in (
    ("a set", set), ("the keys of a dict", lambda ids: dict.fromkeys(ids).keys()), ("a generator", iter))]


TEXT_10_6 = [
    term("10.6", "a version is no other document", ".split(\"@\")[0]", ""),
    term("10.6", "a place is no other document", ".split(\"#\")[0]", ""),
    term("10.6", "the same document leaks", "document(each) == document(row) or ", ""),
    term("10.6", "the same run leaks", " or run(each) == run(row)", ""),
    term("10.6", "in another metric", "\"software\", \"metric\", \"value\")", "\"software\")"),
    term("10.6", "everything that was set", "if key not in told}", "if key not in (*told, \"mbs\")}"),
    term("10.6", "what a profile was made from is as good as fitted",
         " or each[\"id\"] in profiles[row[\"software\"]]", ""),
    term("10.6", "for what is said with it", "in profiles[row[\"software\"]]", "in sum(profiles.values(), [])"),
    term("10.6", "a row that its profile was made from", "for each in rows if each[\"split\"]",
         "for each in rows if each is not row if each[\"split\"]"),
    term("10.6", "or one of its document", "or each[\"id\"] in profiles",
         "or each is row and each[\"id\"] in profiles"),
    term("10.6", "fitted rows count", "each[\"split\"] == \"fitted\" or ", ""),
    term("10.6", "other test rows do not", "each[\"split\"] == \"fitted\" or ", "each is not row or "),
    term("10.6", "test rows are asked", "row[\"split\"] == \"test\" and ", ""),
    example("10.6", lambda inputs, answers: "[" + ", ".join(f'"{name}"' for name in answers[0]) + "]")]


# ---- 10.7 my_wrong_term
@right("10.7", "least squares for each cause, then the nearest factor")
def wrong_term_by_squares(planned, measured):
    work, found = ("matmul", "memory", "tp", "launch"), []
    seconds = numpy.array(measured)
    total = numpy.array([sum(run.values()) for run in planned])
    for cause in planned[0]:
        share = numpy.array([run[cause] * (1 + (cause in work) * run["bubble"] / sum(run[each] for each in work))
                             for run in planned])
        if not share.any():
            continue
        for factor in (0.125, 0.25, 0.5, 2, 4, 8):
            misses = numpy.log((total - share * (1 - 1 / factor)) / seconds)
            found.append(((misses**2).sum(), cause, numpy.float64(factor)))
    return min(found)[1:]


@right("10.7", "the median of the misses, a Fraction")
def wrong_term_by_medians(planned, measured):
    def missed(cause, factor):
        misses = []
        for run, seconds in zip(planned, measured):
            right = dict(run)
            right[cause] /= factor
            busy = [sum(each[name] for name in ("matmul", "memory", "tp", "launch")) for each in (run, right)]
            if cause != "bubble":
                right["bubble"] *= busy[1] / busy[0]
            misses.append(abs(sum(right.values()) / seconds - 1) / max(1, sum(right.values()) / seconds))
        return sum(misses)

    return list(min(((cause, Fraction(2) ** power) for cause in planned[0] for power in (-3, -2, -1, 1, 2, 3)),
                    key=lambda term: missed(term[0], float(term[1]))))


WORK = ("matmul", "memory", "tp", "launch")
FACTORS = (1 / 8, 1 / 4, 1 / 2, 2, 4, 8)


def put_right(run, cause, factor, waits=True):
    less = run[cause] * (1 - 1 / factor)
    return sum(run.values()) - less * (1 + (waits and cause in WORK and run["bubble"] / sum(run[its] for its in WORK)))


def wrong_term(planned, measured, waits=True, factors=FACTORS, causes=lambda run: run, left=None, runs=slice(None)):
    left = left or (lambda step, seconds: abs(math.log(step / seconds)))
    return min(((cause, factor) for cause in causes(planned[0]) for factor in factors), key=lambda term: sum(
        left(put_right(run, *term, waits), seconds) for run, seconds in list(zip(planned, measured))[runs]))


@wrong("10.7", "does the bubble grow with its work in yours?")
def wrong_term_without_waiting(*asked):
    return wrong_term(*asked, waits=False)


@wrong("10.7", "the factor is upside down: it says how many times too long the planner's is")
def wrong_term_upside_down(*asked):
    cause, factor = wrong_term(*asked)
    return cause, 1 / factor


TERMS_OF = [wrong("10.7", says)(lambda *asked, rules=rules: wrong_term(*asked, **rules)) for rules, says in (
    ({"runs": slice(1)}, "one run is looked at: many terms explain it, and only one of them explains all runs"),
    ({"factors": (2, 4, 8)}, "only terms that are too long are tried: a wrong one may be too short, 1/8, 1/4 or 1/2"),
    ({"factors": (1 / 8, 1 / 4, 1 / 2)}, "only terms that are too short are tried"),
    ({"causes": lambda run: [cause for cause in run if cause != "bubble"]},
     "the bubble is left out: it may be the wrong term, too"),
    ({"causes": lambda run: WORK}, "only the work is looked at: dp or the bubble may be wrong, too"))]


@wrong("10.7", "the largest cause is taken for the wrong one: a cause is wrong if its size goes with the error, from "
       "run to run")
def wrong_term_that_is_largest(planned, measured):
    cause = max(planned[0], key=lambda cause: sum(run[cause] / sum(run.values()) for run in planned))
    return wrong_term(planned, measured, causes=lambda run: [cause])


@wrong("10.7", "this is what comes out where errors of runs are added up with their signs, and cancel out: look at "
       "what each run is missed by")
def wrong_term_by_the_whole_bill(planned, measured):
    return min(((cause, factor) for cause in planned[0] for factor in FACTORS), key=lambda term: abs(
        sum(put_right(run, *term) - seconds for run, seconds in zip(planned, measured))))


@wrong("10.7", "expected one of matmul")
def wrong_term_by_number(planned, measured):
    return "step", 2


@wrong("10.7", "it uses course_lib.planner")
def wrong_term_of_the_library(planned, measured):
    from course_lib.planner.estimate import CAUSES

    return CAUSES[2], 2.0


def runs_and_term(inputs, answers):
    planned, measured = inputs[0]
    runs = [", ".join(f"{run[cause]:g}" for cause in ("matmul", "memory", "tp", "bubble", "dp")) for run in planned]
    cause, factor = answers[0]
    return [*(f"{run} measured {seconds:g} s" for run, seconds in zip(runs, measured)), f'("{cause}", {factor:.1f})']


TEXT_10_7 = [
    term("10.7", "the bubble waits for the work", "if cause in work:", "if False:"),
    term("10.7", "several runs, not one", "in zip(planned, measured)", "in list(zip(planned, measured))[:1]"),
    term("10.7", "too short as well as too long", "(1 / 8, 1 / 4, 1 / 2, 2, 4, 8)", "(2, 4, 8)"),
    term("10.7", "by what factor", "(1 / 8, 1 / 4, 1 / 2, 2, 4, 8)", "(1 / 2, 2)"),
    term("10.7", "the planner's over the right one", "(1 - 1 / factor)", "(1 - factor)"),
    term("10.7", "any cause", "for cause in planned[0]", "for cause in work"),
    term("10.7", "misses of both signs", "abs(math.log((sum(run.values()) - less) / seconds))",
         "math.log((sum(run.values()) - less) / seconds)"),
    example("10.7", runs_and_term)]


# ---- 10.8 my_steps
@right("10.8", "the median of the rates, a tensor")
def steps_by_median_rate(fitted, unseen):
    def parts(run):
        beside = run["pp_messages"] + run["dp"] + run["optimiser"]
        return run["matmul"], run["memory"] + run["tp"] + run["launch"], beside, 1 + (run["pp"] - 1) / run["v"] / run[
            "micro_batches"]

    rates = sorted(((run["measured"] - beside) / longer - other) / matmul for run in fitted
                   for matmul, other, beside, longer in [parts(run)])
    rate = (rates[len(rates) // 2] + rates[(len(rates) - 1) // 2]) / 2
    return torch.tensor([(rate * matmul + other) * longer + beside for run in unseen
                         for matmul, other, beside, longer in [parts(run)]], dtype=torch.float64)


@right("10.8", "least squares of relative errors")
def steps_by_squares(fitted, unseen):
    def columns(runs):
        longer = numpy.array([1 + (run["pp"] - 1) / (run["v"] * run["micro_batches"]) for run in runs])
        rest = numpy.array([run["memory"] + run["tp"] + run["launch"] for run in runs]) * longer
        rest += numpy.array([run["pp_messages"] + run["dp"] + run["optimiser"] for run in runs])
        return numpy.array([run["matmul"] for run in runs]) * longer, rest

    (matmul, rest), measured = columns(fitted), numpy.array([run["measured"] for run in fitted])
    a, b = matmul / measured, 1 - rest / measured
    matmul_there, rest_there = columns(unseen)
    return list((a @ b) / (a @ a) * matmul_there + rest_there)


def steps_by(fitted, unseen, term=lambda run: (run["pp"] - 1) / (run["v"] * run["micro_batches"]), rate=None,
             fitted_with=None):
    def step(run, rate, term):
        work = rate * run["matmul"] + run["memory"] + run["tp"] + run["launch"]
        return work * (1 + term(run)) + run["pp_messages"] + run["dp"] + run["optimiser"]

    found = rate or min((0.5 + i / 100 for i in range(300)), key=lambda rate: sum(
        abs(math.log(step(run, rate, fitted_with or term) / run["measured"])) for run in fitted))
    return [step(run, found, term) for run in unseen]


STEPS = [wrong("10.8", says)(lambda *asked, rules=rules: steps_by(*asked, **rules)) for rules, says in (
    ({"term": lambda run: 0}, "there is no term: a rate alone cannot tell runs with a bubble from runs without"),
    ({"term": lambda run: (run["pp"] - 1) / run["micro_batches"]},
     "chunks are left out, which no fitted run has: with v of them the bubble is v times shorter"),
    ({"term": lambda run: run["v"] * (run["pp"] - 1) / run["micro_batches"]},
     "chunks are taken for more stages: with v of them the bubble is v times shorter"),
    ({"term": lambda run: (run["pp"] - 1) / (run["v"] * run["micro_batches"] + run["pp"] - 1)},
     "that is the bubble's share of the whole: of the work it is (pp - 1)/(v m)"),
    ({"term": lambda run: run["pp"] / (run["v"] * run["micro_batches"])},
     "a pipeline of pp stages is taken to wait for pp turns: it is pp - 1, and without a pipeline none"),
    ({"rate": 1.0}, "the rate is not fitted: products are too fast by as much as the fitted runs say"),
    ({"fitted_with": lambda run: 0}, "the rate is fitted without the term: it has taken over a part of the bubble"))]


@wrong("10.8", "the whole step is multiplied by a factor: products alone are too fast, and the bubble is no constant")
def steps_times_a_factor(fitted, unseen):
    def said(run):
        return sum(value for key, value in run.items() if key not in ("pp", "micro_batches", "v", "measured"))

    ratios = sorted(run["measured"] / said(run) for run in fitted)
    return [ratios[len(ratios) // 2] * said(run) for run in unseen]


@wrong("10.8", "the nearest fitted run is repeated: its factor is right for itself alone")
def steps_of_the_nearest_run(fitted, unseen):
    def nearest(run):
        return min(fitted, key=lambda each: abs(each["pp"] - run["pp"]) + abs(math.log(each["matmul"] / run["matmul"])))

    return [run["matmul"] * nearest(run)["measured"] / nearest(run)["matmul"] for run in unseen]


@wrong("10.8", "one for each unseen run")
def steps_of_fitted_runs(fitted, unseen):
    return my_steps(fitted, fitted)


@wrong("10.8", "it uses course_lib.grading")
def steps_of_the_judge(fitted, unseen):
    from course_lib.grading.chapters import load

    step_of = load(10, "judge_terms").step_of
    return [step_of(run, 1.5) for run in unseen]


def missing_term(inputs, answers):
    (first, second), (unseen,) = inputs[0]
    sizes = "pp {pp}, {micro_batches} micro-batches, v {v}"
    return [
        f"matmul {first['matmul']:g}, pp {first['pp']}, measured {first['measured']}",
        f"matmul {second['matmul']:g}, dp {second['dp']}, {sizes.format(**second)}",
        f"= {second['measured']}. Unseen: matmul {unseen['matmul']:g}, memory {unseen['memory']:g}, tp {unseen['tp']}",
        f"optimiser {unseen['optimiser']}, {sizes.format(**unseen)}: (10 + 2) *",
        f"[{answers[0][0]:.1f}]"]


TEXT_10_8 = [
    term("10.8", "a term", "return work + bubble +", "return work +"),
    term("10.8", "pp - 1 turns", "(run[\"pp\"] - 1)", "run[\"pp\"]"),
    term("10.8", "v chunks on each stage", "(run[\"v\"] * run[\"micro_batches\"])", "run[\"micro_batches\"]"),
    term("10.8", "of the work", "run[\"micro_batches\"])\n", "run[\"micro_batches\"] + run[\"pp\"] - 1)\n"),
    term("10.8", "at the right rate", "rate * run[\"matmul\"]", "run[\"matmul\"]"),
    term("10.8", "fitted with the term in place", "step(run, rate) / run", "step(run | {\"pp\": 1}, rate) / run"),
    term("10.8", "on all fitted runs", "for run in fitted)", "for run in fitted[:1])"),
    term("10.8", "all other causes", "+ run[\"pp_messages\"] + run[\"dp\"] + run[\"optimiser\"]", ""),
    example("10.8", missing_term)]
