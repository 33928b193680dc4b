"""cut_buckets keeps the order, fills each bucket as far as the cap allows, and leaves what is too large alone."""

import math

from hypothesis import given
from hypothesis import strategies as st

from course_lib.costs.buckets import cut_buckets


@given(st.lists(st.integers(0, 50), max_size=40), st.one_of(st.integers(0, 120), st.just(math.inf)))
def test_every_size_is_in_one_bucket_in_its_order_and_none_would_have_fitted_into_the_bucket_before(sizes, cap):
    """There is one such cut only."""
    buckets = cut_buckets(sizes, cap)
    assert [index for bucket in buckets for index in bucket] == list(range(len(sizes)))
    held = [sum(sizes[index] for index in bucket) for bucket in buckets]
    assert all(bucket and (num_bytes <= cap or len(bucket) == 1) for num_bytes, bucket in zip(held, buckets))
    assert all(before + sizes[after[0]] > cap for before, after in zip(held, buckets[1:]))
