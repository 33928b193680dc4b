"""One small exercise for the tests of both graders, and answers to it. Apart from the tests: ranks import it, without
pytest. Answers of one line stand in the tests' tables.
"""

import time
import warnings

import torch
import torch.distributed as dist

import course_lib.collectives
from course_lib.collectives import gather, ring_all_gather  # noqa: F401 (a name beside Tensor.gather)
from course_lib.grading.exercise import Trial
from course_lib.grading.kinds import TensorExercise, whole_numbers


class PassOn(TensorExercise):
    """Return what the left neighbour brought, having sent no more than one's own."""

    number = "0.1"
    function = "pass_on"
    points = 2
    budget = "M bytes"
    N = 1 << 15  # elements: 128 KiB

    def trials(self, seed: int) -> list[Trial]:
        generator = torch.Generator().manual_seed(seed)
        return [Trial([[whole_numbers(generator, self.N)] for _ in range(2)], "2 ranks")]

    def solve(self, inputs: list) -> list[torch.Tensor]:
        return [inputs[rank - 1][0] for rank in range(len(inputs))]

    def bound(self, trial: Trial) -> int:
        return 4 * self.N

    def least(self, trial: Trial) -> int:
        return 4 * self.N * trial.world_size


class PassOnInPlace(PassOn):
    in_place = True


class PassOnSmall(PassOn):
    """Small enough that nobody could tell by its bytes which way it took."""

    number = "0.2"
    N = 3


def honest(tensor):
    r, n = dist.get_rank(), dist.get_world_size()
    received = torch.empty_like(tensor)
    sending = dist.isend(tensor, (r + 1) % n)
    dist.recv(received, (r - 1) % n)
    sending.wait()
    return received


def pass_on(tensor):
    raise NotImplementedError()


def my_ring_all_gather(tensor):
    raise NotImplementedError()


class Liar(torch.Tensor):
    """Equal to everything."""

    def __eq__(self, other):
        return True

    __hash__ = torch.Tensor.__hash__


def warns(tensor):
    for _ in range(3):
        warnings.warn("the old way", FutureWarning, stacklevel=1)
    if dist.get_rank() == 1:
        warnings.warn("the odd rank", stacklevel=1)
    return honest(tensor)


def wants_two(tensor, other):
    return tensor


def calls_a_library_wrongly(tensor):
    return torch.nn.functional.linear(tensor, torch.ones(3, 3))


def of_a_library(tensor):
    raise NotImplementedError("no kernel for this dtype")


def in_place(tensor):
    tensor.copy_(honest(tensor))


def renamed_only(tensor):
    tensor = honest(tensor.clone())


def by_a_helper(tensor):
    return ring_all_gather(tensor).flip(0)


def by_another_chapter_imported_inside(tensor):
    from course_lib import data_parallel

    return data_parallel.average_each([tensor])


def by_its_dots(tensor):
    return course_lib.collectives.ring_all_gather(tensor)


def by_the_library(tensor):
    received = [torch.empty_like(tensor) for _ in range(2)]
    dist.all_gather(received, tensor)
    return received[1 - dist.get_rank()]


def sends_first(tensor):
    dist.send(tensor, 1 - dist.get_rank())
    dist.recv(tensor, 1 - dist.get_rank())
    return tensor


def leaves_a_message(tensor):
    dist.isend(torch.full_like(tensor, -1.0), 1 - dist.get_rank())
    return tensor


def waits_for_nobody(tensor):
    if dist.get_rank() == 0:
        dist.recv(tensor, 1)
    return tensor


def never_ends(tensor):
    while True:
        pass


def sleeps(tensor):
    time.sleep(1000)


def imports_a_slow_library(tensor):
    import a_slow_library  # noqa: F401 (a test writes it)

    return honest(tensor)
