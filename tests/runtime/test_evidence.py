"""A rank that fails shows the tensors of the failing line: shape, dtype, device, and small values."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from course_lib.runtime import RankFailed, launch


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


def own_tensor():
    shares = torch.full((dist.get_rank() + 2,), float(dist.get_rank()))
    return shares + torch.ones(2) if dist.get_rank() == 1 else shares


def long_tensor():
    weights, unrelated = torch.ones(3, 4), torch.ones(2)
    assert unrelated.sum() == 2
    return weights @ weights


def without_memory():
    weight = torch.ones(3)
    weight.untyped_storage().resize_(0)
    return weight + torch.ones(2)


class Odd(torch.Tensor):
    @property
    def shape(self):
        raise ValueError("no shape")


def cannot_be_looked_at():
    weight = torch.ones(2).as_subclass(Odd)
    raise RuntimeError(f"the story {id(weight) > 0}")


def no_tensor():
    number = 3
    raise ValueError(f"number {number}")


@pytest.mark.parametrize("fails, shown, error", [
    (lambda: Layer()(torch.ones(2, 3, dtype=torch.float64)),
     ["x: float64[2, 3] on cpu = [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]", "self.weight: float32[4, 5] on cpu",
      "self.parts: list of 2: float32[2] on cpu, float32[3] on cpu"], "RuntimeError: "),
    (own_tensor, ["shares: float32[3] on cpu = [1.0, 1.0, 1.0]"], "RuntimeError: "),  # of the rank that fails
    (long_tensor, ["weights: float32[3, 4] on cpu"], "RuntimeError: "),
    (without_memory, ["weight: float32[3] on cpu without memory"], "RuntimeError: "),
    (cannot_be_looked_at, [], "RuntimeError: the story True"),
    (no_tensor, [], "ValueError: number 3"),
])
def test_tensors_of_the_line_are_shown_in_its_order_and_what_cannot_be_looked_at_hides_no_failure(fails, shown, error):
    with pytest.raises(RankFailed) as failure:
        launch(fails, world_size=3)
    text = str(failure.value)
    assert [line.strip() for line in text.splitlines() if " on cpu" in line] == shown
    assert f"  {error}" in text
    assert fails is not no_tensor or len(text.splitlines()) == 3
