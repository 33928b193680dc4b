"""What overlaps and what is exposed, against closed forms."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_lib.costs.links import Link
from course_lib.costs.memory import MIB
from course_lib.costs.overlap import MACHINES, MODELS, BackwardPiece, simulate_overlap
from course_lib.costs.sharding import cut_buckets

NO_LATENCY = Link(0.0, 1e-9)
SLOW_START = Link(1e-3, 1e-9)


def all_reduce(num_bytes, n, link):
    return 2 * (n - 1) * link.alpha_s + 2 * (n - 1) / n * num_bytes * link.beta_s_per_byte


def exposed_by_hand(pieces, cap, n, link):
    """Seconds of all-reduces that are left when backward has ended: one stream, a bucket goes when it is full."""
    wire, now, bucket, ready = 0.0, 0.0, 0, 0.0
    for gradient_bytes, backward_s in [*pieces, (math.inf, 0.0)]:
        if bucket and bucket + gradient_bytes > cap:
            wire, bucket = max(wire, ready) + all_reduce(bucket, n, link), 0
        now += backward_s
        bucket, ready = (bucket + gradient_bytes, now) if gradient_bytes else (bucket, ready)
    return max(0.0, wire - now)


@given(st.lists(st.tuples(st.integers(0, 1 << 22), st.floats(1e-5, 0.01)), min_size=1, max_size=12),
       st.sampled_from([0, 1 << 20, 1 << 22, 1 << 30]), st.sampled_from([1, 2, 3, 8]),
       st.sampled_from([NO_LATENCY, SLOW_START]))
def test_what_is_exposed_is_what_a_stream_of_messages_has_left_when_backward_ends(pieces, cap, n, link):
    step = simulate_overlap([BackwardPiece("", "", *piece) for piece in pieces], cap, n, link)
    assert step.exposed_s == pytest.approx(exposed_by_hand(pieces, cap, n, link), abs=1e-12)
    assert step.backward_s == pytest.approx(sum(backward_s for _, backward_s in pieces))
    sent_s = sum(all_reduce(bucket.num_bytes, n, link) for bucket in step.buckets)
    assert step.communication_s == pytest.approx(sent_s)
    # A share of a message of one byte has few digits: seconds are compared.
    assert step.hidden * sent_s == pytest.approx(sent_s - step.exposed_s, abs=1e-15) and (sent_s or step.hidden == 1)


def test_whole_nodes_leave_less_than_a_card_alone_and_ethernet_most():
    names = "A100, 8 in a node, HDR", "A100, 1 in a node, HDR", "A100, 1 in a node, Ethernet 10G"
    left = [simulate_overlap(MODELS["GPT-2, 124M"].pieces(on.flops_per_s), 25 * MIB, 16, on.wires).exposed_s
            for on in map(MACHINES.get, names)]
    assert left == sorted(left)
    assert [MACHINES[names[0]].bytes_per_s(n) / 1e9 for n in (8, 16)] == pytest.approx([300, 200])
    assert MACHINES["laptop, gloo"].bytes_per_s(4) == pytest.approx(1e9)


@pytest.mark.parametrize("model, millions", [
    ("GPT of this course, 11M", 10.8), ("GPT-2, 124M", 124.4), ("GPT-2, 1.6B", 1557.6)])
def test_models_have_the_parameters_of_their_names_and_backward_takes_4_flops_for_each_and_token(model, millions):
    shape = MODELS[model]
    pieces = shape.pieces(flops_per_s=1e12)
    num = sum(piece.gradient_bytes for piece in pieces) / 4
    assert num / 1e6 == pytest.approx(millions, rel=2e-3)
    positions = shape.sequence_length * shape.hidden_size  # looked up, not multiplied
    assert sum(piece.backward_s for piece in pieces) == pytest.approx(4 * (num - positions) * shape.num_tokens / 1e12)


@given(st.lists(st.integers(0, 50), max_size=40), st.one_of(st.integers(0, 120), st.just(math.inf)))
def test_every_size_is_in_one_bucket_in_its_order_and_none_would_have_fitted_into_the_bucket_before(sizes, cap):
    """There is one such cut only."""
    buckets = cut_buckets(sizes, cap)
    assert [index for bucket in buckets for index in bucket] == list(range(len(sizes)))
    held = [sum(sizes[index] for index in bucket) for bucket in buckets]
    assert all(bucket and (num_bytes <= cap or len(bucket) == 1) for num_bytes, bucket in zip(held, buckets))
    assert all(before + sizes[after[0]] > cap for before, after in zip(held, buckets[1:]))
