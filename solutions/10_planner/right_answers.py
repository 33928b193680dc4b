"""Right answers to the exercises of chapter 10 that nobody would think of first; tests/grading/test_answers.py has each
pass at ten seeds, in the names of the notebook beside this file.
"""
# ruff: noqa: F821

from fractions import Fraction

import numpy
import torch

from tools.answers import right


def of_each(value, change):
    return {name: change(number) for name, number in value.items()}


RIGHT = [
    right("10.1", "Fractions")(lambda *asked: of_each(my_memory(*asked), Fraction)),
    right("10.1", "numpy's numbers")(lambda *asked: of_each(my_memory(*asked), numpy.float64)),
    right("10.3", "all k at once, numpy's whole numbers")(lambda *asked: cap_by_numpy(*asked)),
    right("10.3", "numpy's whole numbers")(lambda *asked: numpy.array(my_layout_under_cap(*asked))),
    right("10.4", "numpy's whole numbers")(lambda *asked: of_each(my_better_layout(*asked), numpy.int64)),
    right("10.4", "keys in another order")(lambda *asked: dict(sorted(my_better_layout(*asked).items(), reverse=True))),
    right("10.5", "recompute as a truth value, tuples")(lambda look, *asked: tuple(
        (plan | {"recompute": bool(plan["recompute"])}, numpy.float64(share))
        for plan, share in my_cheapest_run(look, *asked))),
    right("10.5", "in three parts where two would do")(lambda *asked: [
        (plan, part) for plan, share in my_cheapest_run(*asked) for part in (share / 2, share / 2)]),
]


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
        "logits": Fraction(4 * tokens * rows * vocab, tp) if stage + 1 == pp else 0,
    }


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
