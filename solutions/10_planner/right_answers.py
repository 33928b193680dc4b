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
