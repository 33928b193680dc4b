"""Exercise 10.2: the share of a step in which devices idle, from the layout alone.

    N  devices, dp = N/(tp pp) replicas of them     B  rows of a batch, m = B/(dp b) micro-batches of b rows a replica
    v  chunks of layers on each stage     l  layers     H  what the read-out takes, in layers; it is on the last stage
    step = m slowest + (all stages' time - slowest)/v            in the time of a layer

Source: Narayanan et al. 2021, section 2.2, with stages that are not alike.
"""

import random
from collections.abc import Iterable
from typing import Any

from course_lib.grading.numbers import NumberExercise


class BubbleShare(NumberExercise):
    number = "10.2"
    function = "my_bubble_share"
    points = 2
    unit = ""
    budget = "15/143 of the time for 16,384 devices, tp8 pp16, 8 chunks, 2,048 rows and equal stages"
    hints = (
        "From the layout to a pipeline: how many replicas are there, and how many micro-batches does one of them get? "
        "Then the pipeline: which stage sets the pace, and how long is a micro-batch on its way past all others?",
        "m = B/(dp b) with dp = N/(tp pp). Each stage has l/pp layers, the last one H more. The slowest works m times "
        "without a gap; the way past all the others is a v-th of their time, as it begins and ends with chunks. Of pp "
        "times that step, m times all stages' time is work.",
        "dp = num_devices // (tp * pp)\n"
        "m = ...\n"
        "stages = [num_layers / pp] * pp\n"
        "stages[-1] += head_layers\n"
        "step = m * max(stages) + ... / num_chunks\n"
        "return 1 - ... / (pp * step)",
    )
    LLAMA = 16_384, 8, 16
    cases = (("1,024 devices, tp 8, pp 8, 2 chunks, 512 rows, 2 a micro-batch, 96 layers, the read-out takes 2",
              (1024, 8, 8, 2, 512, 2, 96, 2)),
             ("the same without chunks", (1024, 8, 8, 1, 512, 2, 96, 2)),
             ("16,384 devices, tp 8, pp 16, 8 chunks, 2,048 rows, 128 layers, equal stages",
              (*LLAMA, 8, 2048, 1, 128, 0)),
             ("the same, the read-out takes 1 layer", (*LLAMA, 8, 2048, 1, 128, 1)),
             ("64 devices, tp 4, no pipeline", (64, 4, 1, 1, 256, 2, 32, 2)))

    def expected(self, num_devices: int, tp: int, pp: int, num_chunks: int, batch_rows: int, rows: int,
                 num_layers: int, head_layers: float) -> float:
        m = batch_rows // (num_devices // (tp * pp) * rows)
        work, slowest = num_layers + head_layers, num_layers / pp + head_layers
        return 1 - m * work / (pp * (m * slowest + (work - slowest) / num_chunks))

    def draw(self, source: random.Random) -> tuple[str, tuple[Any, ...]]:
        pp, v, rows, head = source.randint(3, 12), source.randint(2, 4), source.randint(2, 4), source.randint(1, 4)
        dp, each = source.randint(2, 12), source.randint(2, 5)
        asked = (dp * 4 * pp, 4, pp, v, dp * rows * pp * source.randint(1, 4), rows, pp * v * each, head)
        return (f"{asked[0]} devices, tp 4, pp {pp}, {v} chunks, {asked[4]} rows, {rows} a micro-batch, {asked[6]} "
                f"layers, the read-out takes {head}"), asked

    def mistakes(self, num_devices: int, tp: int, pp: int, num_chunks: int, batch_rows: int, rows: int,
                 num_layers: int, head_layers: float) -> Iterable[tuple[str, float]]:
        N, p, v, l, H = num_devices, pp, num_chunks, num_layers, head_layers
        m = batch_rows / (N // (tp * pp) * rows)

        def share(m: float = m, work: float = l + H, slowest: float = l / p + H, way: float | None = None,
                  v: float = v) -> float:
            step = m * slowest + (work - slowest if way is None else way) / v
            return 1 - m * work / (p * step)

        right = share()
        yield "the chunks are left out: with v of them the way past the other stages is v times shorter", share(v=1)
        yield "v chunks are taken for v times as many stages: they make the bubble shorter", share(v=1 / v)
        yield ("the read-out is left out, or dealt out over all stages: it makes the last one slower, and all others "
               "wait for it", share(work=l, slowest=l / p))
        yield "the way past the other stages is not pp - 1 times the slowest: it takes each one's own time", share(
            way=(p - 1) * (l / p + H))
        yield "the slowest stage is counted m times and once more on the way", share(way=l + H)
        yield "the whole batch is taken for one replica's: divide it by dp", share(m=batch_rows / rows)
        yield "rows are taken for micro-batches: each has several of them", share(m=m * rows)
        yield "tensor parallel ranks are taken for replicas: dp = devices / (tp pp)", share(m=m / tp)
        yield "stages are taken for replicas: dp = devices / (tp pp)", share(m=m / p)
        yield "all devices are taken for replicas: dp = devices / (tp pp)", share(m=m / (tp * p))
        yield "this is the share of the ideal time: here that of the whole step is asked", right / (1 - right)
        yield "this is the share of useful work: 1 minus it is asked", 1 - right
        yield "these are per cent: a share is asked", 100 * right
