"""What nobody reports is found: the rank and the tensor of a flipped bit, and who is slow."""

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from course_lib.checkpoint.accidents import (
    checksum,
    find_corruption,
    find_outliers,
    find_stragglers,
    flip_bit,
    gather_numbers,
    local_norm,
    repeat_elsewhere,
)
from course_lib.checkpoint.piece import pieces
from course_lib.reference import batches
from course_lib.runtime import launch
from tests.checkpoint import runs

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.uint8)


@given(dtype=st.sampled_from(DTYPES), size=st.integers(1, 50), data=st.data())
def test_every_flipped_bit_changes_the_checksum_and_flips_back(dtype, size, data):
    tensor = torch.arange(size).to(dtype)
    before, copy = checksum(tensor), tensor.clone()
    place, bit = data.draw(st.integers(0, size - 1)), data.draw(st.integers(0, 8 * dtype.itemsize - 1))
    flip_bit(tensor, place, bit)
    assert checksum(tensor) != before and (tensor.view(torch.uint8) != copy.view(torch.uint8)).sum() == 1
    flip_bit(tensor, place, bit)
    assert checksum(tensor) == before and tensor.view(torch.uint8).equal(copy.view(torch.uint8))


def test_numbers_that_change_places_change_the_checksum_and_a_bit_that_is_not_there_is_refused():
    assert checksum(torch.tensor([1.0, 2.0])) != checksum(torch.tensor([2.0, 1.0]))
    assert checksum(torch.zeros(0)) == 0
    with pytest.raises(ValueError, match="a place below 3 and a bit below 32"):
        flip_bit(torch.zeros(3), 0, 32)


def corrupt(layout, wrong, flips):
    """What is found after `wrong` has flipped a bit, before that, and when it has been flipped back."""
    run = runs.Run(layout)
    run.train(0, 1)
    found = []
    weight = dict(run.model.named_parameters())[flips]
    for flip in (False, True, True):
        if flip and dist.get_rank() == wrong:
            flip_bit(weight, 5, 1)
        found.append([(str(one), one.certain) for one in find_corruption(pieces(run.model, run.optimizer))])
    return found


@pytest.mark.parametrize(("n", "layout", "wrong", "flips", "said"), [
    (3, "ddp", 2, "module.norm.weight", [("norm.weight is wrong on rank 2", True)]),
    (2, "ddp", 0, "module.norm.weight", [("norm.weight differs between ranks 0, 1", False)]),
    (3, "tp", 1, "norm.weight", [("norm.weight is wrong on rank 1", True)]),
    (3, "tp", 1, "blocks.0.mlp.input.weight", []),  # a slice, which nobody else has
])
def test_a_flipped_bit_is_found_on_the_rank_and_in_the_tensor_where_it_is(n, layout, wrong, flips, said):
    assert launch(corrupt, layout, wrong, flips, world_size=n) == [[[], said, []]] * n


# A chip that computes wrongly: before the reduction


def slip(wrong, factor):
    """Train under dp; from step 2 on the backward of rank `wrong` makes one gradient `factor` times as large. What
    norms before the reduction find in each step, and checksums in the end.
    """
    run = runs.trainer(f"dp{dist.get_world_size()}")
    average, by_norms = run.model.reduce_gradients, []

    def look_and_average():
        by_norms.append(find_outliers([norm for norm, in gather_numbers([local_norm(run.model.parameters())])]))
        average()

    run.model.reduce_gradients = look_and_average
    dict(run.model.named_parts())["blocks.0.mlp.input.weight"].register_hook(
        lambda gradient: gradient * (factor if dist.get_rank() == wrong and run.step_number >= 2 else 1))
    run.train(4, progress=False)
    return by_norms, find_corruption(pieces(run.model, run.optimizer))


def test_an_average_spreads_a_wrong_gradient_so_that_norms_before_it_find_it_and_checksums_do_not():
    for by_norms, by_checksums in launch(slip, 1, 1e4, world_size=4):
        assert by_norms == [[], [], [1], [1]] and by_checksums == []


def repeat(layout, wrong, bit):
    """What repeating finds, and norms, where the backward of rank `wrong` flips a bit of one number."""
    run = runs.trainer(layout)
    model = run.model

    def flipped(gradient):
        gradient = gradient.clone()
        flip_bit(gradient, 3, bit)
        return gradient

    if dist.get_rank() == wrong:
        dict(model.named_parts())["blocks.0.mlp_norm.weight"].register_hook(flipped)

    def gradients_of(place):
        model.zero_grad()
        model.pipeline.step(*batches(0, place, model.dp.n, batch_size=16, sequence_length=16))
        return [parameter.grad for parameter in model.parameters()]

    pairs = repeat_elsewhere(gradients_of, model.dp)
    return pairs, find_outliers([norm for norm, in gather_numbers([local_norm(model.parameters())], model.dp)])


@pytest.mark.ci
def test_the_last_bit_of_one_number_is_found_by_repeating_elsewhere_and_not_by_norms():
    for wrong, pairs in ((2, [(1, 2), (2, 3)]), (0, [(0, 1), (3, 0)]), (-1, [])):
        assert launch(repeat, "dp4", wrong, 0, world_size=4) == [(pairs, [])] * 4


def test_of_two_replicas_of_a_model_that_is_cut_repeating_says_that_they_differ():
    """Ranks 0 to 3 are one tp2 pair after the other: rank 1 is compared with its own replica alone, rank 3."""
    found = [pairs for pairs, _ in launch(repeat, "dp2,tp2", 1, 0, world_size=4)]
    assert found == [[], [(0, 1), (1, 0)], [], [(0, 1), (1, 0)]]


@pytest.mark.parametrize(("norms", "found"), [
    ([1.0, 1.3, 0.7, 3.2], [3]), ([1.0, 1.3, 0.2, 1.1], [2]), ([1.0, float("nan"), 1.2, float("inf")], [1, 3]),
    ([1.0, 2.9], []), ([1.0, 3.1], [0, 1])])
def test_an_outlier_is_far_from_the_median_of_the_others(norms, found):
    assert find_outliers(norms) == found


STEADY = [[1.0, 1.1, 0.9, 1.0]] * 3


@pytest.mark.parametrize(("seconds", "how", "found"), [
    ([*STEADY, [1.6, 1.5, 1.0, 1.7]], {}, [3]), ([*STEADY, [1.0, 9.0, 1.0, 1.0]], {}, []), ([[1.0], [2.0]], {}, [1]),
    ([[2.0] * 4, *STEADY], {"factor": 2.5}, []), ([[1.2] * 4, *STEADY], {"factor": 1.1}, [0])])
def test_a_straggler_is_who_is_slow_in_most_steps(seconds, how, found):
    assert find_stragglers(seconds, **how) == found
