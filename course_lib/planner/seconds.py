"""Seconds by cause, and the forward and the backward pass that they make up."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Seconds:
    """Seconds by cause. `matmul`: all products, attention's too; `memory`: passes over memory between them."""

    matmul: float = 0.0
    memory: float = 0.0
    tp: float = 0.0
    cp: float = 0.0
    ep: float = 0.0
    launch: float = 0.0

    @property
    def total(self) -> float:
        """Seconds of all causes together."""
        return self.matmul + self.memory + self.tp + self.cp + self.ep + self.launch

    def __add__(self, other: Seconds) -> Seconds:
        return Seconds(self.matmul + other.matmul, self.memory + other.memory, self.tp + other.tp, self.cp + other.cp,
                       self.ep + other.ep, self.launch + other.launch)

    def __mul__(self, times: float) -> Seconds:
        return Seconds(self.matmul * times, self.memory * times, self.tp * times, self.cp * times, self.ep * times,
                       self.launch * times)

    def with_launches(self, seconds: float, adds: bool = False) -> Seconds:
        """These seconds with the wait for kernels that the processor launches more slowly than the device runs them;
        or, `adds`, with the time of launching, where one processor does both.
        """
        return replace(self, launch=seconds if adds else max(0.0, seconds - self.total))


@dataclass(frozen=True)
class Pass:
    """`weight_s`: what the products of the weights' gradients take, of backward."""

    forward: Seconds
    backward: Seconds
    weight_s: float = 0.0

    @property
    def total(self) -> float:
        """Seconds of forward and backward together."""
        return self.forward.total + self.backward.total

    def __add__(self, other: Pass) -> Pass:
        return Pass(self.forward + other.forward, self.backward + other.backward, self.weight_s + other.weight_s)

    def __mul__(self, times: float) -> Pass:
        return Pass(self.forward * times, self.backward * times, self.weight_s * times)


def exposed_seconds(message_s: float, computing_s: float, drag: float = 0.0) -> float:
    """What a message costs beside computing: what is left of it, and the drag of what is hidden."""
    return max(0.0, message_s - computing_s) + drag * min(message_s, computing_s)
