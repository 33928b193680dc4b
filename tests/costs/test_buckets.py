"""cut_buckets keeps the order, fills each bucket as far as the cap allows, and leaves what is too large alone."""

import math
import random

import pytest

from course_lib.costs.buckets import cut_buckets


@pytest.mark.parametrize("sizes, cap, buckets", [
    ([], 10, []), ([3], 10, [[0]]), ([5, 5, 1], 10, [[0, 1], [2]]), ([4, 20, 4, 4], 10, [[0], [1], [2, 3]]),
    ([20, 20], 10, [[0], [1]]), ([1, 1, 1], 0, [[0], [1], [2]]), ([1, 2, 3], math.inf, [[0, 1, 2]]),
])
def test_a_bucket_holds_at_most_the_cap_and_what_is_larger_travels_alone(sizes, cap, buckets):
    assert cut_buckets(sizes, cap) == buckets


@pytest.mark.parametrize("seed", range(20))
def test_every_size_is_in_one_bucket_in_its_order_and_none_would_have_fitted_into_the_bucket_before(seed):
    draw = random.Random(seed)
    sizes, cap = [draw.randint(1, 50) for _ in range(draw.randint(0, 40))], draw.randint(0, 120)
    buckets = cut_buckets(sizes, cap)
    assert [index for bucket in buckets for index in bucket] == list(range(len(sizes)))
    held = [sum(sizes[index] for index in bucket) for bucket in buckets]
    assert all(num_bytes <= cap or len(bucket) == 1 for num_bytes, bucket in zip(held, buckets))
    assert all(before + sizes[after[0]] > cap for before, after in zip(held, buckets[1:]))


@pytest.mark.parametrize("sizes, cap", [([1, -1], 10), ([1], -1)])
def test_negative_bytes_are_refused(sizes, cap):
    with pytest.raises(ValueError, match="expected bytes, 0 or more"):
        cut_buckets(sizes, cap)
