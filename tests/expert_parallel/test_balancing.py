"""What chapter 8 says of the two ways to keep experts busy rests on pairs: equal in everything but the way."""

import pytest
import torch

from benchmarks import balancing


def test_ways_are_compared_from_the_same_start_and_every_seed_has_its_own():
    one, *others = (balancing.start(way, 3).state_dict() for way in balancing.WAYS)
    assert len(balancing.WAYS) == 4
    assert all(torch.equal(other[name], value) for other in others for name, value in one.items())
    assert not torch.equal(balancing.start("bias, sigmoid", 4).state_dict()["blocks.0.mlp.experts.w1"],
                           one["blocks.0.mlp.experts.w1"])


def test_at_the_start_expert_0_is_everybodys_favourite(monkeypatch):
    monkeypatch.setattr(balancing, "HELD_OUT_ROWS", 8)
    run = balancing.run("bias, softmax", 0, 10)
    assert run.busiest > 7 and run.busiest_once >= run.busiest


def test_the_busiest_is_that_of_the_worse_layer_over_so_many_steps():
    loads = torch.tensor([[[4.0, 0.0], [2.0, 2.0]], [[0.0, 4.0], [3.0, 1.0]]])  # (steps, layers, E)
    assert balancing.busiest_over_mean(loads, 1) == 2  # the first layer, which changes sides
    assert balancing.busiest_over_mean(loads, 2) == 1.25  # the second: 5 against 3


def test_a_difference_of_pairs_has_the_standard_error_of_their_mean():
    assert balancing.paired([3, 5, 7], [2, 3, 4]) == (2, pytest.approx(3**-0.5))
    assert balancing.paired([2.5, 9.5], [2, 9]) == (0.5, 0)  # however far apart the seeds are


@pytest.mark.parametrize("seeds, steps", [(1, 250), (12, 49)])
def test_one_seed_has_no_standard_error_and_few_steps_no_end(seeds, steps):
    with pytest.raises(ValueError, match=f"{seeds} seeds, {steps} steps: expected 2 at least"):
        balancing.main(seeds, steps)
