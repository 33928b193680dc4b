"""ShardedSampler reads every sample, deals as torch's DistributedSampler does, and needs no message to agree."""

import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, DistributedSampler

from course_lib.data_parallel import ShardedSampler
from tests.ranks import on_ranks

sizes = st.tuples(st.integers(1, 40), st.integers(1, 9), st.booleans(), st.integers(0, 3), st.integers(0, 3))


def shards(num_samples, n, shuffle, seed, epoch, equal_lengths):
    samplers = [ShardedSampler(range(num_samples), r, n, shuffle, seed, equal_lengths) for r in range(n)]
    for sampler in samplers:
        sampler.set_epoch(epoch)
    assert [len(sampler) for sampler in samplers] == [len(list(sampler)) for sampler in samplers]
    return [list(sampler) for sampler in samplers]


@given(sizes)
def test_every_sample_is_read_exactly_once_and_lengths_differ_by_one_at_most(drawn):
    read = shards(*drawn, equal_lengths=False)
    assert sorted(sum(read, [])) == list(range(drawn[0]))
    assert max(map(len, read)) - min(map(len, read)) <= 1


@given(sizes)
def test_with_equal_lengths_every_sample_is_read_and_the_order_is_torchs_own(drawn):
    num_samples, n, shuffle, seed, epoch = drawn
    read = shards(*drawn, equal_lengths=True)
    assert set(sum(read, [])) == set(range(num_samples)) and len(set(map(len, read))) == 1
    assert len(sum(read, [])) - num_samples < n
    for r in range(n):
        theirs = DistributedSampler(range(num_samples), n, r, shuffle, seed)
        theirs.set_epoch(epoch)
        assert list(theirs) == read[r]


@on_ranks(3)
def test_on_ranks_it_finds_its_place_and_serves_a_data_loader():
    data, rank = [10 * i for i in range(10)], dist.get_rank()
    loader = DataLoader(data, batch_size=2, sampler=ShardedSampler(data, shuffle=False, equal_lengths=False))
    assert [value for values in loader for value in values.tolist()] == data[rank::3]


def test_a_mistake_is_answered_with_what_was_expected():
    for arguments, expected in (((10,), "no process group: expected rank and world_size"),
                                ((10, 1), "rank=1, world_size=None: expected both"),
                                ((10, 2, 2), "rank=2 of world_size=2: expected 0 <= rank < world_size"),
                                (([], 0, 1), "0 samples to share: expected at least 1")):
        with pytest.raises(ValueError, match=expected):
            ShardedSampler(*arguments)
    with pytest.raises(ValueError, match="epoch=-1: expected a whole number"):
        ShardedSampler(10, 0, 1).set_epoch(-1)
