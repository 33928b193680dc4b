"""An exercise for the tests of the class grader, small enough that each of them can have its own trial."""

from collections.abc import Iterable

import torch

from course_lib.grading.exercise import Trial
from course_lib.grading.tensors import TensorExercise, whole_numbers

HONEST = """
import torch
import torch.distributed as dist

def pass_on(tensor):
    r, n = dist.get_rank(), dist.get_world_size()
    received = torch.empty_like(tensor)
    sending = dist.isend(tensor, (r + 1) % n)
    dist.recv(received, (r - 1) % n)
    sending.wait()
    return received
"""


class PassOn(TensorExercise):
    """Return what the left neighbour brought, having sent no more than one's own."""

    number = "0.1"
    function = "pass_on"
    points = 2
    budget = "M bytes"
    hints = ("", "")
    N = 1 << 15  # elements: 128 KiB

    def trials(self, seed: int) -> list[Trial]:
        generator = torch.Generator().manual_seed(seed)
        return [Trial([[whole_numbers(generator, self.N)] for _ in range(2)], "2 ranks")]

    def expected(self, inputs: list) -> list[torch.Tensor]:
        return [inputs[rank - 1][0] for rank in range(len(inputs))]

    def mistakes(self, inputs: list) -> Iterable[tuple[str, list[torch.Tensor]]]:
        yield "every rank returns its own tensor", [tensor for tensor, in inputs]

    def bound(self, trial: Trial) -> int:
        return 4 * self.N

    def least(self, trial: Trial) -> int:
        return 4 * self.N * trial.world_size


class PassOnSmall(PassOn):
    """Small enough that nobody could tell by its bytes which way it took."""

    number = "0.2"
    N = 3
