"""Exercise 10.3: the fastest layout that fits, where some layers of each stage may be recomputed.

    N  devices, t of a node for tensor parallelism, p stages, dp = N/(t p), one row a micro-batch, m = B/dp
    k  layers of each stage that are recomputed, of l/p    G  billions of parameters in a layer    C  GB of a device
    A, I  GB that a layer keeps of a row: everything, or its input alone    c  what a rank more of tp costs

    held (stage 0)  (G (4 + 12/dp) l/p + min(p, m) ((l/p - k) A + k I) + (A if k else 0)) / t
    step            (m + p - 1) (3 l/p + k) (1 + c (t - 1)) / t              in the forward time of a layer and a row

Sources: Korthikanti et al. 2022, section 5; Megatron-LM, --recompute-method block with --recompute-num-layers.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from course_lib.grading.compare import describe
from course_lib.grading.exercise import Exercise, Traffic, Trial
from course_lib.grading.spent import Spent

Layout = tuple[int, int, int]  # tp, pp, k

# N, devices of a node, l, B, G, A, I, C, c. A GPT-3 first: 12,288 wide, rows of 2,048 tokens, which keep 34 s h.
CASES = (("96 layers of 1.81 billion, rows of 2,048 tokens, on 512 devices of 40 GB",
          (512, 8, 96, 512, 1.81, 0.856, 0.050, 36, 0.03)),
         ("32 layers of 0.2 billion, rows of 32,768 tokens, on 64 devices of 80 GB",
          (64, 8, 32, 64, 0.2, 4.56, 0.27, 72, 0.05)),
         ("80 layers of 0.86 billion, rows of 8,192 tokens, on 256 devices of 40 GB",
          (256, 8, 80, 256, 0.86, 2.28, 0.134, 36, 0.04)),
         ("48 layers of 0.4 billion, rows of 2,048 tokens, on 32 devices of 24 GB, two a node",
          (32, 2, 48, 256, 0.4, 0.36, 0.02, 19, 0.10)),
         ("96 layers of 1.81 billion, rows of 2,048 tokens, on 512 devices of 80 GB",
          (512, 8, 96, 512, 1.81, 0.856, 0.050, 70, 0.03)))


class LayoutUnderCap(Exercise):
    number = "10.3"
    function = "my_layout_under_cap"
    points = 4
    right = "the layout is possible"
    budget = "no device holds more than the cap, and no other layout that fits takes a shorter step"
    hints = (
        "There are few layouts: t divides the devices of a node, p the layers, and k goes from none to all layers of a "
        "stage. Write down what has to be whole, and try them all.",
        "For each t and p: dp = N/(t p) and m = B/dp have to be whole. For each k compute held and step as they are "
        "printed; of those whose held is at most the cap take the shortest step. Per t and p that is the first k that "
        "fits.",
        "found = []\n"
        "for t in range(1, per_node + 1):\n"
        "    for p in range(1, num_layers + 1):\n"
        "        if per_node % t or num_layers % p or ...:\n"
        "            continue\n"
        "        dp = num_devices // (t * p)\n"
        "        m, each = ..., num_layers // p\n"
        "        for k in range(each + 1):\n"
        "            held = ...\n"
        "            if held <= cap:\n"
        "                found.append(((m + p - 1) * ..., t, p, k))\n"
        "return min(found)[1:]",
    )

    def trials(self, seed: int) -> list[Trial]:
        source = random.Random(seed)
        l, G = 12 * source.randint(2, 6), source.randint(20, 60) / 100
        drawn = (2 ** source.randint(5, 6), 4, l, 192, G, source.randint(40, 120) / 100, 0.05, 40, 0.05)
        return [Trial([list(asked)], label) for label, asked in (
            *CASES, (f"{l} layers of {G:g} billion on {drawn[0]} devices of 40 GB, 4 a node", drawn))]

    @staticmethod
    def run(function: Callable, inputs: list[Any]) -> Any:
        returned = function(*inputs)
        if isinstance(returned, list | tuple) and all(type(count) is int for count in returned):
            return list(returned)
        return "nothing (None)" if returned is None else f"a {type(returned).__name__}, no three whole numbers"

    def arguments(self, trial: Trial) -> Sequence[Any]:
        return trial.inputs[0]

    def wrong(self, trial: Trial, answers: list[Any]) -> str | None:
        (N, per_node, l, B, *_), (given,) = trial.inputs[0], answers
        if type(given) is not list or len(given) != 3 or not all(type(count) is int for count in given):
            return f"it returned {describe(given)}: expected three whole numbers, tp, pp and k"
        t, p, k = given
        if t < 1 or per_node % t:
            return f"it returned tp = {t}: expected a divisor of the {per_node} devices of a node"
        if p < 1 or l % p:
            return f"it returned pp = {p}: expected a divisor of the {l} layers"
        if N % (t * p) or B % (N // (t * p)):
            return (f"it returned tp = {t} and pp = {p}: expected a product that divides {N} devices into replicas, "
                    f"whose number divides the {B} rows")
        if not 0 <= k <= l // p:
            return f"it returned k = {k}: a stage has {l // p} layers to recompute"
        return None

    def spent(self, trial: Trial, answers: list[Any], traffic: Traffic) -> list[Spent]:
        asked, given = trial.inputs[0], tuple(answers[0])
        why, who = self.cause(list(given), *asked) or "", f"with tp {given[0]}, pp {given[1]} and k = {given[2]} it"
        return [Spent("holds", held(given, *asked), asked[7], "", " GB on stage 0", who=who, why=why, slack=1e-9),
                Spent("takes", step(given, *asked), step(best(*asked), *asked), "", " layers' time", who=who, why=why,
                      limit="par {}", slack=1e-6)]

    def mistakes(self, *asked: Any) -> Iterable[tuple[str, list[int]]]:
        N, per_node, l, B, G, A, I, C, c = asked  # noqa: E741
        every = list(layouts(*asked))

        def chosen(needs: Callable[[Layout], float] = lambda layout: held(layout, *asked),
                   takes: Callable[[Layout], float] = lambda layout: step(layout, *asked),
                   among: Callable[[Layout], bool] = lambda layout: True) -> list[int]:
            fits = [layout for layout in every if among(layout) and needs(layout) <= C]
            return list(min(fits, key=lambda layout: (takes(layout), layout))) if fits else [0, 0, 0]

        def with_in_flight(flight: Callable[[int, int], int]) -> list[int]:
            return chosen(lambda layout: held(layout, *asked, flight=flight))

        yield "this would be the shortest step if memory were without end", chosen(lambda layout: 0.0)
        nothing = "it recomputes nothing, or whole stages: a few layers of each may do, and take a shorter step"
        yield nothing, chosen(among=lambda layout: layout[2] == 0)
        yield nothing, chosen(among=lambda layout: layout[2] in (0, l // layout[1]))
        yield ("every layer is recomputed, where some could be kept", chosen(
            among=lambda layout: layout[2] == l // layout[1]))
        yield ("it takes recomputing for nothing: each of the k layers goes forward once more", chosen(
            takes=lambda layout: step((*layout[:2], 0), *asked)))
        yield ("the layer that is made again is left out: while it goes backward, one layer holds all of A", chosen(
            lambda layout: held(layout, *asked) - (A / layout[0] if layout[2] else 0)))
        yield "it counts one micro-batch in flight: stage 0 has min(p, m) of them", with_in_flight(lambda p, m: 1)
        yield "it counts all m micro-batches in flight, as in GPipe: 1F1B has min(p, m)", with_in_flight(
            lambda p, m: m)
        yield "inputs of recomputed layers are left out: they are kept for each micro-batch in flight", chosen(
            lambda layout: held(layout, *asked) - min(layout[1], B * layout[0] * layout[1] // N) * layout[2] * I
            / layout[0])
        yield "16 bytes a parameter are counted: the optimiser's 12 are dealt out over dp", chosen(
            lambda layout: held(layout, *asked) + 12 * G * l / (layout[0] * layout[1])
            * (1 - layout[0] * layout[1] / N))
        yield "activations are left out", chosen(lambda layout: held(layout, *asked, flight=lambda p, m: 0))
        yield "tp is taken for nothing: each rank more of it costs c", chosen(
            takes=lambda layout: step(layout, *asked) / (1 + c * (layout[0] - 1)))
        yield "tp as far as the node goes is not always best: where less of it fits, it costs less", chosen(
            among=lambda layout: layout[0] == per_node)
        yield "a pipeline is not for nothing: it fills and drains in p - 1 micro-batches' time", chosen(
            takes=lambda layout: step(layout, *asked, filling=False))
        yield "this is the longest step of all that fit", chosen(takes=lambda layout: -step(layout, *asked))


def layouts(N: int, per_node: int, l: int, B: int, *rest: float) -> Iterable[Layout]:  # noqa: E741
    """Every (tp, pp, k) that deals out devices, layers and rows evenly."""
    for t in (t for t in range(1, per_node + 1) if per_node % t == 0):
        for p in (p for p in range(1, l + 1) if l % p == 0 and N % (t * p) == 0 and B % (N // (t * p)) == 0):
            yield from ((t, p, k) for k in range(l // p + 1))


def held(layout: Layout, N: int, per_node: int, l: int, B: int, G: float, A: float, I: float, C: float,  # noqa: E741
         c: float, flight: Callable[[int, int], int] = min) -> float:
    """GB on a device of stage 0. `flight`: how many micro-batches of p and m."""
    t, p, k = layout
    dp, each = N // (t * p), l / p
    return (G * (4 + 12 / dp) * each + flight(p, B // dp) * ((each - k) * A + k * I) + (A if k else 0)) / t


def step(layout: Layout, N: int, per_node: int, l: int, B: int, G: float, A: float, I: float, C: float,  # noqa: E741
         c: float, filling: bool = True) -> float:
    """How long a step takes, in the forward time of one layer for one row."""
    t, p, k = layout
    return (B * t * p // N + filling * (p - 1)) * (3 * l / p + k) * (1 + c * (t - 1)) / t


def best(*asked: Any) -> Layout:
    return min((layout for layout in layouts(*asked) if held(layout, *asked) <= asked[7]),
               key=lambda layout: step(layout, *asked))
