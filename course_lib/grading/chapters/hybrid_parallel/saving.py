"""Exercise 9.6: how often to save, where something fails every few hours.

    N  devices      M  seconds between failures of the whole      tau  seconds from one save to the next
    d  seconds that a save stops the run      w  seconds until it is written
    lost share(tau) = d/tau + (tau/2 + w + restart)/M,  least at tau = sqrt(2 d M)

Sources: Young 1974, "A First Order Approximation to the Optimum Checkpoint Interval"; Daly 2006, "A Higher Order
Estimate of the Optimum Checkpoint Interval for Restart Dumps"; Llama team 2024, sections 3.3.1 and 3.3.4.
"""

import math
import random
from collections.abc import Iterable
from typing import Any

from course_lib.grading.numbers import NumberExercise

STATE = 12  # bytes a parameter: the weight and AdamW's two, in fp32
HOURS = round(54 * 24 * 16_384 / 419)  # of a device for each failure: 419 unexpected ones in 54 days of 16,384 H100
PCIE = 50e9  # bytes/s from a device into the host's memory, of the 64e9 of PCIe 5 x16


class SaveInterval(NumberExercise):
    number = "9.6"
    function = "my_save_interval"
    points = 3
    tolerance = (0.01, 0.0)
    unit = "exact s"
    budget = "within 1 %"
    hints = (
        "Saving twice as often costs twice as much and loses half as much when something fails. Where do the two meet? "
        "And which of the seconds of a save does the run notice, where it is written behind its back?",
        "d/tau falls and tau/(2 M) rises; the sum is least where its derivative is 0, at tau = sqrt(2 d M). M is one "
        "device's hours over the number of devices, in seconds. d is the whole of writing, or, asynchronously, the "
        "copy of one device's part; but then a save cannot begin before the last one is written.",
        "state = 12 * num_parameters\n"
        "between_failures = ... / num_devices\n"
        "write = state / storage_bytes_per_s\n"
        "if not asynchronous:\n"
        "    return (2 * write * between_failures) ** 0.5\n"
        "copy = ...  # every device its own part\n"
        "return max(..., ...)",
    )
    LLAMA = 16_384, HOURS, 405e9, PCIE
    cases = (("405B on 16,384 H100, storage of 100 GB/s, the run waits", (*LLAMA, 100e9, False)),
             ("the same, asynchronously", (*LLAMA, 100e9, True)),
             ("the same on Llama 3's storage of 2 TB/s, asynchronously", (*LLAMA, 2e12, True)),
             ("70B on 1,024 H100, storage of 10 GB/s, the run waits", (1024, HOURS, 70e9, PCIE, 10e9, False)),
             ("7B on 8 devices that copy 1 GB/s, storage of 1 GB/s, asynchronously", (8, 2000, 7e9, 1e9, 1e9, True)))

    def expected(self, num_devices: int, device_hours: float, num_parameters: float, copy_bytes_per_s: float,
                 storage_bytes_per_s: float, asynchronous: bool) -> float:
        between, write = 3600 * device_hours / num_devices, STATE * num_parameters / storage_bytes_per_s
        copy = STATE * num_parameters / num_devices / copy_bytes_per_s
        return max(write, math.sqrt(2 * copy * between)) if asynchronous else math.sqrt(2 * write * between)

    def draw(self, source: random.Random) -> tuple[str, tuple[Any, ...]]:
        N, hours, B = 8 * source.randint(1, 500), 1000 * source.randint(5, 60), source.randint(1, 90)
        storage = source.randint(1, 40)
        return (f"{B}B on {N} devices, a failure in {hours:,} h of one, {storage} GB/s, the run waits",
                (N, hours, B * 1e9, PCIE, storage * 1e9, False))

    def mistakes(self, num_devices: int, device_hours: float, num_parameters: float, copy_bytes_per_s: float,
                 storage_bytes_per_s: float, asynchronous: bool) -> Iterable[tuple[str, float]]:
        N, between, state = num_devices, 3600 * device_hours / num_devices, STATE * num_parameters
        write, copy = state / storage_bytes_per_s, state / N / copy_bytes_per_s
        right = self.expected(N, device_hours, num_parameters, copy_bytes_per_s, storage_bytes_per_s, asynchronous)
        pause, least = (copy, write) if asynchronous else (write, 0.0)

        def interval(pause: float = pause, between: float = between, least: float = least) -> float:
            return max(least, math.sqrt(2 * pause * between))

        if asynchronous:
            yield ("that is for a run that waits until all is written: asynchronously it stops for the copy alone",
                   interval(write, least=0.0))
            yield ("a save begins before the last one is written: the interval cannot be shorter than writing takes",
                   interval(least=0.0))
            yield ("one device copies the whole state: each copies its own part, an N-th", interval(N * copy))
            yield "copy and write are added up: the run goes on while it is written", interval(copy + write)
        else:
            yield ("the run waits until all is written, which the storage decides, not the copy into the host's "
                   "memory", interval(copy))
            yield ("storage is shared by all devices, which write one state together: write takes state / storage, "
                   "not an N-th of it", interval(write / N))
        yield ("something fails N times as often as one device does: divide its hours by the number of devices",
               interval(between=N * between))
        yield "hours are not seconds: 3,600 of them", interval(between=between / 3600)
        yield "that many minutes are no seconds: an hour has 3,600", interval(between=between / 60)
        yield ("the 2 under the root is missing: half an interval is lost on average, not a whole one",
               interval(between=between / 2))
        yield "the root is not taken", max(least, 2 * pause * between)
        for size, what in ((2, "weights in bf16"), (4, "weights"), (8, "AdamW's two"), (14, "weights twice"),
                           (16, "weights, gradients and AdamW's two")):
            scale = size / STATE
            yield (f"a checkpoint is taken for {size} bytes a parameter, {what}: it has the weights and AdamW's two in "
                   "fp32, 12", interval(pause * scale, least=least * scale))
        yield "that is one failure after the other: the time to the next save is asked", between
        yield "these are hours: seconds are asked", right / 3600
        yield "these are minutes: seconds are asked", right / 60
