"""Exercise 10.1: bytes of a rank by kind.

    l  layers of hidden size h, 12 h^2 numbers each    V  numbers of the vocabulary; embedding and read-out are V h each
    B  rows of a batch, m = B/(dp b) micro-batches of b rows a replica
    a layer keeps 34 s b h bytes of a micro-batch (attention without s x s matrices), or its input alone, 2 s b h

Sources: Korthikanti et al. 2022, equations 2 and 4; Megatron-Core's distributed optimiser, 6 + 12/dp bytes a parameter
under ZeRO 1.
"""

import random
from typing import Any

from course_lib.costs.bubbles import peak_1f1b
from course_lib.costs.memory import training_memory
from course_lib.grading.compare import alike, describe
from course_lib.grading.exercise import Exercise, SentBytes, Trial, trials_of
from course_lib.grading.on_rank.plain import values
from course_lib.grading.spent import Spent

CUTS = ("dp", "tp", "pp", "rows", "zero", "recompute")
GPT3 = 96, 12288, 51200, 2048, 1536  # l, h, V, s, B
LLAMA_7B = 32, 4096, 32000, 4096, 256  # with a GPT's layers


def label_of(l: int, h: int, V: int, s: int, B: int, cut: dict[str, int], stage: int) -> str:
    return (f"layers {l}, hidden {h}, dp {cut['dp']}, tp {cut['tp']}, pp {cut['pp']}, rows {cut['rows']}, "
            f"ZeRO {cut['zero']}, recompute {cut['recompute']}, stage {stage}")


class LayoutMemory(Exercise):
    number = "10.1"
    tolerance = (1e-9, 1e-6)
    budget = "each kind to the byte"
    run = staticmethod(values)
    cases = (
        ((2, 10, 100, 8, 3), (1, 1, 1, 3, 0, 0), 0),
        (GPT3, (8, 8, 16, 1, 1, 0), 15),
        (GPT3, (64, 8, 16, 4, 1, 0), 0),
        ((*LLAMA_7B[:4], 12), (4, 2, 8, 1, 2, 0), 1),  # 3 micro-batches
        (GPT3, (8, 8, 16, 1, 1, 0), 0),
        (GPT3, (8, 8, 16, 2, 1, 1), 3),
        (LLAMA_7B, (64, 1, 1, 2, 3, 0), 0),
        (LLAMA_7B, (2, 4, 4, 4, 0, 0), 3),
    )

    def trials(self, seed: int) -> list[Trial]:
        source = random.Random(seed)
        dp, tp, pp = (2 ** power for power in map(source.randint, (1, 1, 2), (4, 3, 4)))
        drawn = dp, tp, pp, *map(source.randint, (1, 1, 0), (2, 3, 1))
        stage, l, h = source.randint(1, pp - 2), pp * source.randint(2, 6), 128 * source.randint(8, 64)
        cases = (*self.cases, ((l, h, 32000, 1024, 64 * dp), drawn, stage))
        return trials_of(((*sizes, dict(zip(CUTS, cut)), stage) for sizes, cut, stage in cases), label_of)

    def solve(self, inputs: list[Any]) -> list[dict[str, float]]:
        l, h, V, s, B, cut, stage = inputs[0]
        dp, tp, pp, b, zero, recompute = (cut[name] for name in CUTS)
        numbers = (l / pp * 12 * h**2 + ((stage == 0) + (stage == pp - 1)) * V * h) / tp
        state = training_memory(numbers, "mixed, fp32 gradients", zero, dp).by_kind()
        one, in_flight = s * b * h / tp, peak_1f1b(pp, B // (dp * b), stage)
        kept = (2 if recompute else 34) * one * l / pp * in_flight + (34 * one if recompute else 0)
        return [state | {"activations": kept, "logits": 4 * s * b * V / tp if stage == pp - 1 else 0.0}]

    def difference(self, given: list[Any], expected: list[dict[str, float]]) -> str:
        (has,), (right,) = given, expected
        if type(has) is not dict or has.keys() != right.keys():
            form = f"a dict with {', '.join(map(str, has)) or 'nothing'}" if type(has) is dict else describe(has)
            return f"it returned {form[:150]}: expected a dict with {', '.join(right)}"
        kind = next(kind for kind in right if not alike(has[kind], right[kind], self.tolerance))
        size = f"{has[kind] / 1e9:.6g} GB" if type(has[kind]) in (int, float) else describe(has[kind])
        return f"{kind} is {size}, expected {right[kind] / 1e9:.6g} GB"

    def opening(self, trial: Trial, answers: list[Any]) -> str:
        return f"{self.wrong(trial, answers)}: "

    def usage(self, trial: Trial, answers: list[Any], traffic: SentBytes) -> list[Spent]:
        given, right = (sum(held.values()) / 1e9 for (held,) in (answers, self.solve(trial.inputs)))
        return [Spent("counted", given, right, "", " GB in all", limit="{} expected", slack=1e-6)]
