"""What chapter 3 says of compression over several seeds rests on runs that differ in the hook alone."""

import pytest
import torch

from benchmarks import compression
from course_lib.data_parallel import DistributedDataParallel
from tests.data_parallel.test_hooks import Given, averaged
from tests.ranks import on_ranks


@on_ranks(2)
def test_momentum_is_kept_on_the_ranks_and_restarts_where_it_was_sent():
    model = DistributedDataParallel(Given((4,)), hook=compression.MomentumCorrectedTopK(0.5, warm_up=0))
    first, second = (averaged(model, torch.tensor([8.0, 4.0, 2.0, 1.0]))[0].tolist() for _ in range(2))
    assert first == pytest.approx([0.8, 0.4, 0, 0])
    # what stayed behind moves by 0.9 of its momentum more: 0.2 + (0.9 · 0.2 + 0.1 · 2)
    assert second == pytest.approx([0.8, 0, 0.58, 0])


def test_every_way_is_compared_with_exact_gradients_at_its_own_rate(monkeypatch, capsys):
    losses = {"float32, rate 0.001": 2.0, "float32, rate 0.002": 4.0, "the same, twice the rate": 5.0}
    monkeypatch.setattr(compression, "launch", lambda body, way, *_, **__: [losses.get(way.name, 3.0)])
    compression.main(seeds=1)
    table = capsys.readouterr().out
    assert "the same, twice the rate           25.0   25.0   25.0" in table
    assert "top-k                              50.0   50.0   50.0" in table


@pytest.mark.parametrize("seeds, steps", [(0, 120), (1, 20)])
def test_too_few_seeds_or_steps_are_refused(seeds, steps):
    with pytest.raises(ValueError, match="more than 20 steps"):
        compression.main(seeds, steps)
