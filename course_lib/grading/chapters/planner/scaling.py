"""Exercise 10.6: how many devices the same batch can feed.

    MFU  share of the peak; without a bubble it would be MFU (1 + x), where x is the bubble over the ideal time
    x = (p - 1)/(v m)     m = B/(dp b)  micro-batches of a replica     dp = N/(tp p)
    so 1 + x = 1 + N (p - 1) b/(v B tp p): a straight line in N

Sources: Narayanan et al. 2021, section 2.2; Llama team 2024, table 4 (43 % on 8,192 H100, 41 % on 16,384).
"""

import random
from collections.abc import Iterable
from typing import Any

from course_lib.grading.numbers import NumberExercise


class MostDevices(NumberExercise):
    number = "10.6"
    function = "my_most_devices"
    points = 3
    tolerance = (0.01, 0.0)
    unit = "exact devices"
    budget = "within 1 %"
    hints = (
        "Twice the devices with the same batch are twice the replicas. What does that make of the micro-batches of "
        "each, of its work, and of its bubble? Which part of the step does not get shorter?",
        "x = (pp - 1)/(v m) is the bubble over the ideal time, and it grows as N does, since m = B tp pp/(N b). "
        "MFU (1 + x) is the same on any number of devices. Take x now, solve for x where MFU is `wanted`, and go from "
        "x back to N.",
        "m = batch_rows * tp * pp / (num_devices * rows)\n"
        "x = (pp - 1) / (num_chunks * m)\n"
        "x_then = mfu * (1 + x) / ... - 1\n"
        "return num_devices * ...",
    )
    LLAMA = 8, 16  # tp, pp
    cases = (("256 devices at 50 %, tp 4, pp 8, 2 chunks, 512 rows, 4 a micro-batch: 40 %",
              (256, 0.5, 4, 8, 2, 512, 4, 0.4)),
             ("8,192 devices at 43 %, tp 8, pp 16, 8 chunks, 2,048 rows: 41 %", (8192, 0.43, *LLAMA, 8, 2048, 1, 0.41)),
             ("the same down to 40 %", (8192, 0.43, *LLAMA, 8, 2048, 1, 0.40)),
             ("the same with one chunk, down to 40 %", (8192, 0.43, *LLAMA, 1, 2048, 1, 0.40)),
             ("16,384 devices at 41 %, tp 8, pp 16, 8 chunks, 32,768 rows: 38 %",
              (16384, 0.41, *LLAMA, 8, 32768, 1, 0.38)))

    def expected(self, num_devices: int, mfu: float, tp: int, pp: int, num_chunks: int, batch_rows: int, rows: int,
                 wanted: float) -> float:
        x = (pp - 1) / (num_chunks * batch_rows * tp * pp / (num_devices * rows))
        return num_devices * (mfu * (1 + x) / wanted - 1) / x

    def draw(self, source: random.Random) -> tuple[str, tuple[Any, ...]]:
        pp, v, rows, dp, per_cent = (source.randint(*bounds) for bounds in ((3, 9), (2, 4), (2, 4), (4, 20), (42, 55)))
        N, B, wanted = 4 * pp * dp, dp * rows * pp * source.randint(1, 4), per_cent - source.randint(3, 8)
        return (f"{N} devices at {per_cent} %, tp 4, pp {pp}, {v} chunks, {B} rows, {rows} a micro-batch: {wanted} %",
                (N, per_cent / 100, 4, pp, v, B, rows, wanted / 100))

    def mistakes(self, num_devices: int, mfu: float, tp: int, pp: int, num_chunks: int, batch_rows: int, rows: int,
                 wanted: float) -> Iterable[tuple[str, float]]:
        N, p, v = num_devices, pp, num_chunks
        m = batch_rows * tp * p / (N * rows)

        def most(x: float) -> float:
            return N * (mfu * (1 + x) / wanted - 1) / x

        x = (p - 1) / (v * m)
        yield "the bubble that is there already is left out: what grows no further is MFU (1 + x)", N * (
            mfu / wanted - 1) / x
        yield ("the new bubble is added to the old one as if MFU had been measured without any: MFU (1 + x) is what "
               "stays", N * (1 + (mfu / wanted - 1) / x))
        yield "MFU is taken to fall as devices grow in number: only the bubble grows with them", N * mfu / wanted
        of_total = (p - 1) / (v * m + p - 1)
        yield ("a share of the whole time does not grow in proportion to N: that of the ideal time does, "
               "(pp - 1)/(v m)", N * (1 - wanted * (1 - of_total) / mfu) / of_total)
        yield ("a share of the whole time is taken for one of the ideal time: x = (pp - 1)/(v m)", most(of_total))
        yield "the chunks are left out: a bubble is v times shorter with v of them", most(v * x)
        yield "all rows are taken for one replica's: divide them by dp", most((p - 1) * rows / (v * batch_rows))
        yield "rows are taken for micro-batches: each has several of them", most(x / rows)
        yield "tensor parallel ranks are taken for replicas: dp = devices / (tp pp)", most(x * tp)
        yield "stages are taken for replicas: dp = devices / (tp pp)", most(x * p)
        yield "a pipeline of pp stages fills and drains in pp - 1 steps, not in pp", most(p / (v * m))
        yield "these are replicas: devices are asked", most(x) / (tp * p)
        yield "that many are to be added: all together are asked", most(x) - N
