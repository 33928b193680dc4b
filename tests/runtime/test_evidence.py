"""A rank that fails shows the tensors of the failing line: shape, dtype, device, and small values."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from course_lib.runtime import RankFailed, launch


def error_text(function, world_size=2):
    with pytest.raises(RankFailed) as failure:
        launch(function, world_size=world_size)
    return str(failure.value)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 5))
        self.parts = [torch.ones(2), torch.ones(3)]

    @property
    def bias(self):
        raise KeyError("a property of the reader's is not run to explain a failure")

    def forward(self, x):
        return x @ self.weight + self.parts[0]


def test_variables_attributes_and_lists_of_tensors_are_shown_in_the_order_of_the_line():
    text = error_text(lambda: Layer()(torch.ones(2, 3, dtype=torch.float64)))
    shown = [line.strip() for line in text.splitlines() if " on cpu" in line]
    assert shown == ["x: float64[2, 3] on cpu = [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]",
                     "self.weight: float32[4, 5] on cpu",
                     "self.parts: list of 2: float32[2] on cpu, float32[3] on cpu"]


def test_the_lowest_failing_rank_speaks_of_its_own_tensor():
    def body():
        shares = torch.full((dist.get_rank() + 2,), float(dist.get_rank()))
        return shares + torch.ones(2) if dist.get_rank() else shares

    assert "shares: float32[3] on cpu = [1.0, 1.0, 1.0]" in error_text(body)


def test_long_tensors_show_no_values_and_other_lines_show_nothing():
    def body():
        weights, unrelated = torch.ones(3, 4), torch.ones(2)
        assert unrelated.sum() == 2
        return weights @ weights

    text = error_text(body)
    assert "weights: float32[3, 4] on cpu\n" in text + "\n" and "unrelated" not in text


def test_what_is_empty_or_cannot_be_looked_at_does_not_hide_the_failure():
    class Odd(torch.Tensor):
        @property
        def shape(self):
            raise ValueError("no shape")

    def body(odd):
        weight = torch.ones(3)
        weight.untyped_storage().resize_(0)
        if odd:
            weight = torch.ones(2).as_subclass(Odd)
            raise RuntimeError(f"the story {id(weight) > 0}")
        return weight + torch.ones(2)

    assert "weight: float32[3] on cpu without memory" in error_text(lambda: body(odd=False), world_size=1)
    assert "RuntimeError: the story True" in error_text(lambda: body(odd=True), world_size=1)


def test_a_failure_without_tensors_says_none():
    def body():
        number = 3
        raise ValueError(f"number {number}")

    assert error_text(body).splitlines()[1:] == ['    raise ValueError(f"number {number}")', "  ValueError: number 3"]
