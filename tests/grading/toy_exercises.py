"""Small exercises and answers for the tests of the graders. Apart from the tests: ranks import it, without pytest."""

import os
import sys
import warnings

import torch
import torch.distributed as dist

import course_lib.collectives
from course_lib.collectives import gather, ring_all_gather  # noqa: F401 (a name beside Tensor.gather)
from course_lib.grading.exercise import Trial
from course_lib.grading.judges.tensors import TensorExercise


class Swap(TensorExercise):
    """Two ranks swap their tensors."""

    number = "0.1"
    function = "swap"
    points = 5
    budget = "M bytes"

    def trials(self, seed):
        generator = torch.Generator().manual_seed(seed)
        made = [[torch.randint(1, 99, (1 << 16,), generator=generator).float()] for _ in range(2)]
        return [Trial(made, "2 ranks")]

    def solve(self, inputs):
        return [inputs[1][0], inputs[0][0]]

    def bound(self, trial):
        return 4 * trial.inputs[0][0].numel()

    def least(self, trial):
        return 2 * self.bound(trial)


class SwapInPlace(Swap):
    in_place = True


class Liar(torch.Tensor):
    """Equal to everything."""

    def __eq__(self, other):
        return True

    __hash__ = torch.Tensor.__hash__


def swap_halves(tensor):
    peer, received = 1 - dist.get_rank(), torch.empty_like(tensor)
    sending = dist.isend(tensor, peer)
    dist.recv(received, peer)
    sending.wait()
    return received


def swapped_twice_over(tensor):
    swap_halves(tensor)
    return swap_halves(tensor)


def swapped_in_half_precision(tensor):
    return swap_halves(tensor.half()).float()


def swapped_in_place(tensor):
    tensor.copy_(swap_halves(tensor))


def returned_only(tensor):
    return swap_halves(tensor.clone())


def renamed_only(tensor):
    tensor = swap_halves(tensor.clone())


def put_into_the_input(tensor):
    swapped_in_place(tensor)


def no_swap(tensor):
    return tensor


def warns(tensor):
    for _ in range(3):
        warnings.warn("the old way", FutureWarning, stacklevel=1)
    if dist.get_rank() == 1:
        warnings.warn("the odd rank", stacklevel=1)
    return swap_halves(tensor)


def wants_two(tensor, other):
    return tensor


def calls_a_library_wrongly(tensor):
    return torch.nn.functional.linear(tensor, torch.ones(3, 3))


def of_another_shape(tensor):
    return swap_halves(tensor)[:3]


def liar(tensor):
    return tensor.as_subclass(Liar)


def a_number(tensor):
    return 3


def a_sparse_tensor(tensor):
    return tensor.to_sparse()


def swap(tensor):
    raise NotImplementedError()


def my_ring_all_gather(tensor):
    raise NotImplementedError()


def calls_another_stub(tensor):
    return my_ring_all_gather(tensor)


def not_implemented_elsewhere(tensor):
    return of_a_library(tensor)


def of_a_library(tensor):
    raise NotImplementedError("no kernel for this dtype")


def divides_by_zero(tensor):
    return tensor / (1 // 0)


def by_the_library(tensor):
    received = [torch.empty_like(tensor) for _ in range(2)]
    dist.all_gather(received, tensor)
    return received[1 - dist.get_rank()]


def by_the_course(tensor):
    return unwritten_helper(tensor)


def unwritten_helper(tensor):
    return ring_all_gather(tensor).flip(0)


def by_the_course_with_its_dots(tensor):
    return course_lib.collectives.ring_all_gather(tensor)


def by_another_chapter_imported_inside(tensor):
    from course_lib import data_parallel

    return data_parallel.average_each([tensor])


def swapped_by_a_method_called_like_a_collective(tensor):
    return swap_halves(tensor).gather(0, torch.arange(len(tensor)))


def sends_first(tensor):
    dist.send(tensor, 1 - dist.get_rank())
    dist.recv(tensor, 1 - dist.get_rank())
    return tensor


def leaves_a_message(tensor):
    dist.isend(torch.full_like(tensor, -1.0), 1 - dist.get_rank())
    return tensor


def swaps_and_draws(tensor):
    return swap_halves(tensor) + torch.rand(())


def waits_for_nobody(tensor):
    if dist.get_rank() == 0:
        dist.recv(tensor, 1)
    return tensor


def never_ends(tensor):
    while True:
        pass


def exits(tensor):
    sys.exit(3)


def dies(tensor):
    os._exit(0)
