"""Exercise 1.6, a design question: how many nodes to order. Time and memory both ask for devices."""

import math
import random
from collections.abc import Iterable
from typing import Any

from course_lib.facts import accelerator
from course_lib.grading.numbers import NumberExercise


class WhatToOrder(NumberExercise):
    number = "1.6"
    function = "my_nodes_to_order"
    points = 4
    unit = "node"
    tolerance = (0.01, 0.0)
    budget = "the fewest whole nodes that are in time and hold the state, to 1 %"
    hints = (
        "Two conditions, and each asks for a number of devices. Which of them is the larger one?",
        "In time: the FLOPs of the run over what ONE device does in these days. In memory: all bytes of the state over "
        "those that one device may spend on it. Take the larger number, and round up to whole nodes of 8.",
        "device = accelerator('H100')\n"
        "in_time = 6 * ... / (days * 86_400 * device.peak_flops_per_s() * utilisation)\n"
        "in_memory = 16 * num_parameters / (... * device.memory_bytes)\n"
        "return math.ceil(...)   # of both, in nodes",
    )
    DEVICES, STATE_BYTES, FOR_STATE = 8, 16, 0.5  # in a node; for each parameter; the share of the memory
    cases = (("Llama 3 70B on 15T tokens in 30 days at 40 %", (70.6e9, 15e12, 30, 0.4)),
             ("1T parameters, 0.1T tokens to see whether it runs, 60 days at 40 %", (1e12, 1e11, 60, 0.4)),
             ("8B on 2T tokens in 14 days at 45 %", (8.03e9, 2e12, 14, 0.45)))

    def needs(self, num_parameters: float, num_tokens: float, days: float, utilisation: float) -> tuple[float, float]:
        """Devices that are in time, and devices that hold the state."""
        device = accelerator("H100")
        return (6 * num_parameters * num_tokens / (days * 86_400 * device.peak_flops_per_s() * utilisation),
                self.STATE_BYTES * num_parameters / (self.FOR_STATE * device.memory_bytes))

    def expected(self, num_parameters: float, num_tokens: float, days: float, utilisation: float) -> float:
        return self.nodes(*self.needs(num_parameters, num_tokens, days, utilisation))

    def nodes(self, *devices: float) -> float:
        return float(math.ceil(max(devices) / self.DEVICES))

    def draw(self, source: random.Random) -> tuple[str, tuple[Any, ...]]:
        N, days, u = source.randint(20, 600) * 1e9, source.randint(10, 90), source.randint(30, 50) / 100
        return f"{N / 1e9:g}B on 10T tokens in {days} days at {u:.0%}", (N, 1e13, days, u)

    def mistakes(self, num_parameters: float, num_tokens: float, days: float, utilisation: float
                 ) -> Iterable[tuple[str, float]]:
        in_time, in_memory = self.needs(num_parameters, num_tokens, days, utilisation)
        if in_memory > in_time:
            yield ("these nodes are in time, and cannot hold the model: its state needs more devices than the work",
                   self.nodes(in_time))
            yield ("all of the memory is taken for the state: half of it is for activations and what else there is",
                   self.nodes(in_memory * self.FOR_STATE))
            yield ("2 bytes a parameter are the weights alone: gradients and the optimiser's state make 16",
                   self.nodes(in_time, in_memory / 8))
            yield "the two needs are added up: the same devices do both, so the larger one decides", self.nodes(
                in_time + in_memory)
        else:
            yield ("these nodes hold the state, and are not in time: the work needs more devices than the memory",
                   self.nodes(in_memory))
            yield "the utilisation is left out: devices do that share of their peak", self.nodes(in_time * utilisation)
            yield "only the forward pass is counted, 2ND: training takes 6ND", self.nodes(in_time / 3)
            yield "a day has 86,400 seconds: these are hours", self.nodes(in_time * 24)
        yield "these are devices: a node has 8", max(in_time, in_memory)
        yield "these are devices: a node has 8", float(math.ceil(max(in_time, in_memory)))
