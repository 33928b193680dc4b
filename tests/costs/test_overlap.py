"""What overlaps and what is exposed, against closed forms."""

import math

import pytest

from course_lib.costs.links import Link
from course_lib.costs.overlap import CAPS, MACHINES, MIB, MODELS, BackwardPiece, simulate_overlap

NO_LATENCY = Link(0.0, 1e-9)
SLOW_START = Link(1e-3, 1e-9)


def layers(num, gradient_bytes, backward_s):
    return [BackwardPiece(f"{number}", f"{number}", gradient_bytes, backward_s) for number in range(num)]


def all_reduce(num_bytes, n, link):
    return 2 * (n - 1) * link.alpha_s + 2 * (n - 1) / n * num_bytes * link.beta_s_per_byte


@pytest.mark.parametrize("n", [1, 2, 3, 8])
@pytest.mark.parametrize("link", [NO_LATENCY, SLOW_START])
def test_one_bucket_exposes_all_of_the_communication(n, link):
    step = simulate_overlap(layers(10, 1 << 20, 0.01), math.inf, n, link)
    assert len(step.buckets) == 1
    assert step.exposed_s == pytest.approx(all_reduce(10 << 20, n, link))
    assert step.hidden == (pytest.approx(0) if n > 1 else 1)


@pytest.mark.parametrize("num", [1, 7, 1000])
def test_small_messages_that_cost_no_start_leave_only_the_last_one_exposed(num):
    M, n = 64 << 20, 4
    pieces = layers(num, M // num, 1.0 / num)  # an all-reduce takes 0.1 s / num: shorter than a layer
    step = simulate_overlap(pieces, 0, n, NO_LATENCY)
    assert len(step.buckets) == num
    assert step.exposed_s == pytest.approx(all_reduce(M // num, n, NO_LATENCY))


def test_a_wire_slower_than_backward_hides_all_of_backward_but_its_first_layer():
    num, n, backward_s = 20, 4, 1e-4
    step = simulate_overlap(layers(num, 1 << 20, backward_s), 0, n, SLOW_START)
    each = all_reduce(1 << 20, n, SLOW_START)
    assert each > backward_s
    assert step.exposed_s == pytest.approx(num * each - (num - 1) * backward_s)


def test_a_first_message_longer_than_a_layer_delays_the_next():
    pieces = [BackwardPiece(name, name, mib << 20, backward_s)
              for name, mib, backward_s in (("a", 8, 0.01), ("b", 1, 0.01), ("c", 1, 0.1))]
    step = simulate_overlap(pieces, 0, 2, NO_LATENCY)
    a, b, c = step.buckets
    assert a.start_s == a.ready_s == 0.01
    assert b.start_s == pytest.approx(0.02) and b.ready_s == 0.02  # the first took 8.4 ms: the wire is free again
    slow = simulate_overlap(pieces, 0, 2, Link(0.05, 1e-9))
    assert slow.buckets[1].start_s == slow.buckets[0].end_s > slow.buckets[1].ready_s
    assert c.start_s == pytest.approx(0.12)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("cap_mb", CAPS)
def test_hidden_and_exposed_are_all_and_buckets_hold_every_gradient_once_within_the_cap(model, cap_mb):
    on = MACHINES["A100, 1 in a node, HDR"]
    pieces = MODELS[model].pieces(on.flops_per_s)
    step = simulate_overlap(pieces, cap_mb * MIB, 8, on.wires)
    inside = [index for bucket in step.buckets for index in bucket.pieces]
    assert inside == [index for index, piece in enumerate(pieces) if piece.gradient_bytes]
    assert all(bucket.num_bytes <= cap_mb * MIB or len(bucket.pieces) == 1 for bucket in step.buckets)
    assert all(a.end_s <= b.start_s for a, b in zip(step.buckets, step.buckets[1:]))
    assert all(bucket.ready_s <= bucket.start_s for bucket in step.buckets)
    beside = sum(max(0, min(b.end_s, step.backward_s) - min(b.start_s, step.backward_s)) for b in step.buckets)
    assert step.hidden * step.communication_s == pytest.approx(beside)
    assert beside + step.exposed_s == pytest.approx(step.communication_s)
    assert step.communication_s == pytest.approx(
        sum(on.wires.group(8).seconds("all_reduce", bucket.num_bytes) for bucket in step.buckets))


def test_whole_nodes_leave_less_than_a_card_alone_and_one_node_still_less():
    left = {name: simulate_overlap(MODELS["GPT-2, 124M"].pieces(MACHINES[name].flops_per_s), 25 * MIB, 16,
                                   MACHINES[name].wires).exposed_s
            for name in ("A100, 8 in a node, HDR", "A100, 1 in a node, HDR", "A100, 1 in a node, Ethernet 10G")}
    assert sorted(left, key=left.get) == [*left]
    assert [MACHINES["A100, 8 in a node, HDR"].bytes_per_s(n) / 1e9 for n in (8, 16)] == pytest.approx([300, 200])
    assert MACHINES["laptop, gloo"].bytes_per_s(4) == pytest.approx(1e9)


@pytest.mark.parametrize("model, millions", [
    ("GPT of this course, 11M", 10.8), ("GPT-2, 124M", 124.4), ("GPT-2 XL, 1.6B", 1557.6)])
def test_models_have_the_parameters_of_their_names_and_backward_takes_4_flops_for_each_and_token(model, millions):
    shape = MODELS[model]
    pieces = shape.pieces(flops_per_s=1e12)
    num = sum(piece.gradient_bytes for piece in pieces) / 4
    assert num / 1e6 == pytest.approx(millions, rel=2e-3)
    positions = shape.sequence_length * shape.hidden_size  # looked up, not multiplied
    assert sum(piece.backward_s for piece in pieces) == pytest.approx(4 * (num - positions) * shape.num_tokens / 1e12)
