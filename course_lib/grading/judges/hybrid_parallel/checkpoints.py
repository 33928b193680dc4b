"""Exercises 9.5 and 9.6: a checkpoint that another layout has written, and how often to save.

    offsets, shape  of a piece: where its first number stands in the whole tensor, and how far it goes, dim by dim

    N  devices      M  seconds between failures of the whole      tau  seconds from one save to the next
    d  seconds that a save stops the run      w  seconds until it is written
    lost share(tau) = d/tau + (tau/2 + w + restart)/M,  least at tau = sqrt(2 d M)

Sources: Young 1974, "A First Order Approximation to the Optimum Checkpoint Interval"; Daly 2006, "A Higher Order
Estimate of the Optimum Checkpoint Interval for Restart Dumps"; Llama team 2024, sections 3.3.1 and 3.3.4.
"""

import random
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor

from course_lib.checkpoint.piece import take
from course_lib.costs.money import daly_interval, seconds_between_failures, young_interval
from course_lib.grading.compare import alike
from course_lib.grading.exercise import Exercise, SentBytes, Trial, ranks_of
from course_lib.grading.judges.models import doubles
from course_lib.grading.judges.numbers import NumberExercise
from course_lib.grading.judges.split import normal
from course_lib.grading.on_rank import hybrid_parallel as on_rank
from course_lib.grading.spent import Spent, highest

Inputs = list[dict[str, Any]]
Range = list[list[int]]  # offsets and shape
STATE = 12  # bytes a parameter: the weight and AdamW's two, in fp32
HOURS = round(54 * 24 * 16_384 / 419)  # of a device for each failure: 419 unexpected ones in 54 days of 16,384 H100
PCIE = 50e9  # bytes/s from a device into the host's memory, of the 64e9 of PCIe 5 x16


class Resharded(Exercise):
    number = "9.5"
    compared = "returned"
    budget = "no more bytes read than the piece has, on each rank"
    run = staticmethod(on_rank.reshard)
    sizes = (  # a shape, and into how many pieces each dim is cut: as saved, as wanted
        ("6 x 4", "2 x 1", "3 x 1"), ("4 x 6", "3 x 1", "1 x 2"), ("7", "3", "2"), ("8 x 2", "4 x 1", "2 x 1"),
        ("5 x 7", "2 x 2", "1 x 3"), ("4 x 3 x 5", "2 x 1 x 2", "1 x 3 x 1"), ("4 x 4", "2 x 2", "1 x 1"),
        ("96 x 256", "3 x 1", "2 x 2"))

    def example_trial(self) -> Trial:
        inputs = {"offsets": [2], "shape": [3], "saved": {"a": [[3], [4]], "b": [[0], [3]]},
                  "contents": {"a": doubles([30, 40, 50, 60]), "b": doubles([0, 10, 20])}}
        return Trial([inputs], "the example, 1 rank")

    def draw_trial(self, generator: torch.Generator, *case: str) -> Trial:
        shape, old, new = ([int(number) for number in text.split(" x ")] for text in case)
        whole, (first, *others), wanted = normal(generator, *shape), ranges_of(shape, old), ranges_of(shape, new)
        # named in another order than the pieces lie in
        saved = {f"__{number}_0.distcp": own for number, own in enumerate([*others, first])}
        contents = {file: take(whole, *own).clone() for file, own in saved.items()}
        return Trial([{"offsets": offsets, "shape": extent, "saved": saved, "contents": contents}
                      for offsets, extent in wanted],
                     f"{ranks_of(len(wanted))}, {case[0]} cut {case[1]}, wanted {case[2]}")

    def solve(self, inputs: Inputs) -> list[Tensor]:
        saved = inputs[0]["saved"]
        ends = [[offset + size for offset, size in zip(*own)] for own in saved.values()]
        whole = torch.empty(list(map(max, zip(*ends))), dtype=torch.float64)
        for file, own in saved.items():
            take(whole, *own).copy_(inputs[0]["contents"][file])
        return [take(whole, rank["offsets"], rank["shape"]) for rank in inputs]

    def usage(self, trial: Trial, answers: list[Any], traffic: SentBytes) -> list[Spent]:
        read, wanted = [answer["read"] for answer in answers], [piece.nbytes for piece in self.solve(trial.inputs)]
        return [highest("read", read, wanted, claimed=True)]


def ranges_of(shape: Sequence[int], parts: Sequence[int]) -> list[Range]:
    """The pieces of a tensor whose dims are cut into `parts`; along the last dim they follow one another.

    Where a dim cannot be cut evenly, sizes differ by one.
    """
    cuts = [[part.tolist() for part in torch.arange(size).tensor_split(n)] for size, n in zip(shape, parts)]
    return [[[dim[0] for dim in own], [len(dim) for dim in own]] for own in product(*cuts)]


class SaveInterval(NumberExercise):
    number = "9.6"
    unit = "exact s"
    budget = "Young's interval, or Daly's, who counts to a higher order"
    LLAMA = 16_384, HOURS, 405e9, PCIE
    EXAMPLE = 10, 5, 1e9, 1.2e9, 3e9
    cases = (("the example, 10 devices, the run waits", (*EXAMPLE, False)),
             ("the same, asynchronously", (*EXAMPLE, True)),
             ("405B on 16,384 H100, storage of 100 GB/s, the run waits", (*LLAMA, 100e9, False)),
             ("405B on them, asynchronously", (*LLAMA, 100e9, True)),
             ("the same on Llama 3's storage of 2 TB/s, asynchronously", (*LLAMA, 2e12, True)),
             ("70B on 1,024 H100, storage of 10 GB/s, the run waits", (1024, HOURS, 70e9, PCIE, 10e9, False)),
             ("7B on 8 devices that copy 1 GB/s, storage of 1 GB/s, asynchronously", (8, 2000, 7e9, 1e9, 1e9, True)))

    def solve(self, num_devices: int, device_hours: float, num_parameters: float, copy_bytes_per_s: float,
              storage_bytes_per_s: float, asynchronous: bool,
              interval: Callable[[float, float], float] = young_interval) -> float:
        M = seconds_between_failures(1, 3600 * device_hours, 1, num_devices)
        state = STATE * num_parameters
        write, copy = state / storage_bytes_per_s, state / num_devices / copy_bytes_per_s
        return max(write, interval(copy, M)) if asynchronous else interval(write, M)

    def wrong(self, trial: Trial, answers: list[Any]) -> str | None:
        by_daly = self.solve(*self.arguments(trial), daly_interval)
        return None if alike(self.select_parts(answers), by_daly, self.tolerance) else super().wrong(trial, answers)

    def draw(self, source: random.Random) -> tuple[str, tuple[Any, ...]]:
        N, hours, B = 8 * source.randint(1, 500), 1000 * source.randint(5, 60), source.randint(1, 90)
        storage = source.randint(1, 40)
        return (f"{B}B on {N} devices, a failure in {hours:,} h of one, {storage} GB/s, the run waits",
                (N, hours, B * 1e9, PCIE, storage * 1e9, False))
