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
    right("10.2", "a Fraction")(lambda N, tp, pp, v, B, b, l, H: idle_share(N, tp, pp, v, B, b, l, H)),
    right("10.2", "rank by rank, a tensor")(lambda N, tp, pp, v, B, b, l, H: idle_by_ranks(N, tp, pp, v, B, b, l, H)),
    right("10.3", "all k at once, numpy's whole numbers")(lambda *asked: cap_by_numpy(*asked)),
    right("10.3", "numpy's whole numbers")(lambda *asked: numpy.array(my_layout_under_cap(*asked))),
    right("10.4", "numpy's whole numbers")(lambda *asked: of_each(my_better_layout(*asked), numpy.int64)),
    right("10.4", "keys in another order")(lambda *asked: dict(sorted(my_better_layout(*asked).items(), reverse=True))),
    right("10.5", "recompute as a truth value, tuples")(lambda look, *asked: tuple(
        (plan | {"recompute": bool(plan["recompute"])}, numpy.float64(share))
        for plan, share in my_cheapest_run(look, *asked))),
    right("10.5", "in three parts where two would do")(lambda *asked: [
        (plan, part) for plan, share in my_cheapest_run(*asked) for part in (share / 2, share / 2)]),
    right("10.6", "a Fraction")(lambda N, mfu, tp, pp, v, B, b, wanted: fed(N, mfu, tp, pp, v, B, b, wanted)),
    right("10.6", "by bisection")(lambda *asked: fed_by_bisection(*asked)),
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


def idle_share(N, tp, pp, v, B, b, l, H):
    m, work, slowest = B // (N // (tp * pp) * b), Fraction(l + H), Fraction(l, pp) + H
    return 1 - m * work / (pp * (m * slowest + (work - slowest) / v))


def idle_by_ranks(N, tp, pp, v, B, b, l, H):
    m = B // (N // (tp * pp) * b)
    stages = torch.full((pp,), l / pp, dtype=torch.float64)
    stages[-1] += H
    step = m * stages.max() + (stages.sum() - stages.max()) / v
    return (step - m * stages).sum() / (pp * step)


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


def fed(N, mfu, tp, pp, v, B, b, wanted):
    x = Fraction((pp - 1) * N * b, v * B * tp * pp)
    return N * (Fraction(mfu) * (1 + x) / Fraction(wanted) - 1) / x


def fed_by_bisection(N, mfu, tp, pp, v, B, b, wanted):
    def reached(devices):
        def bubble(n):
            return (pp - 1) / v / (B / (n / (tp * pp)) / b)
        return mfu * (1 + bubble(N)) / (1 + bubble(devices))
    low, high = float(N), 1e12
    for _ in range(300):
        low, high = ((low + high) / 2, high) if reached((low + high) / 2) > wanted else (low, (low + high) / 2)
    return numpy.float64(low)
