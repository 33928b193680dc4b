"""BucketOverlap against closed forms: what is exposed, and that the widget says what the simulation found."""

import json
import math

import pytest

from course_lib.collectives import Link, collective_time
from course_lib.costs.overlap import CAPS, MACHINES, MIB, MODELS, Piece, simulate
from course_lib.pictures.figures import to_png
from course_lib.widgets import BucketOverlap
from course_lib.widgets.base import BadParameter
from course_lib.widgets.bucket_overlap import percent, seconds, ticks
from tests.widgets.pictures import size_and_colours

NO_LATENCY = Link(0.0, 1e-9)
SLOW_START = Link(1e-3, 1e-9)


def layers(num, gradient_bytes, backward_s):
    return [Piece(f"{number}", f"{number}", gradient_bytes, backward_s) for number in range(num)]


def all_reduce(num_bytes, n, link):
    return 2 * (n - 1) * link.alpha_s + 2 * (n - 1) / n * num_bytes * link.beta_s_per_byte


@pytest.mark.parametrize("n", [1, 2, 3, 8])
@pytest.mark.parametrize("link", [NO_LATENCY, SLOW_START])
def test_one_bucket_exposes_all_of_the_communication(n, link):
    step = simulate(layers(10, 1 << 20, 0.01), math.inf, n, link)
    assert len(step.buckets) == 1
    assert step.exposed_s == pytest.approx(all_reduce(10 << 20, n, link))
    assert step.hidden == (pytest.approx(0) if n > 1 else 1)


@pytest.mark.parametrize("num", [1, 7, 1000])
def test_small_messages_that_cost_no_start_leave_only_the_last_one_exposed(num):
    M, n = 64 << 20, 4
    step = simulate(layers(num, M // num, 1.0 / num), 0, n, NO_LATENCY)  # one takes 0.1 s / num: shorter than a layer
    assert len(step.buckets) == num
    assert step.exposed_s == pytest.approx(all_reduce(M // num, n, NO_LATENCY))


def test_a_wire_slower_than_backward_hides_all_of_backward_but_its_first_layer():
    num, n, backward_s = 20, 4, 1e-4
    step = simulate(layers(num, 1 << 20, backward_s), 0, n, SLOW_START)
    each = all_reduce(1 << 20, n, SLOW_START)
    assert each > backward_s
    assert step.exposed_s == pytest.approx(num * each - (num - 1) * backward_s)


def test_a_first_message_longer_than_a_layer_delays_the_next():
    pieces = [Piece("a", "a", 8 << 20, 0.01), Piece("b", "b", 1 << 20, 0.01), Piece("c", "c", 1 << 20, 0.1)]
    step = simulate(pieces, 0, 2, NO_LATENCY)
    a, b, c = step.buckets
    assert a.start_s == a.ready_s == 0.01
    assert b.start_s == pytest.approx(0.02) and b.ready_s == 0.02  # the first took 8.4 ms: the wire is free again
    slow = simulate(pieces, 0, 2, Link(0.05, 1e-9))
    assert slow.buckets[1].start_s == slow.buckets[0].end_s > slow.buckets[1].ready_s
    assert c.start_s == pytest.approx(0.12)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("cap_mb", CAPS)
def test_hidden_and_exposed_are_all_and_buckets_hold_every_gradient_once_within_the_cap(model, cap_mb):
    on = MACHINES["A100, InfiniBand HDR"]
    pieces = MODELS[model].pieces(on.flops_per_s)
    step = simulate(pieces, cap_mb * MIB, 8, on.link)
    inside = [index for bucket in step.buckets for index in bucket.pieces]
    assert inside == [index for index, piece in enumerate(pieces) if piece.gradient_bytes]
    assert all(bucket.num_bytes <= cap_mb * MIB or len(bucket.pieces) == 1 for bucket in step.buckets)
    assert all(a.end_s <= b.start_s for a, b in zip(step.buckets, step.buckets[1:]))
    assert all(bucket.ready_s <= bucket.start_s for bucket in step.buckets)
    beside = sum(max(0, min(b.end_s, step.backward_s) - min(b.start_s, step.backward_s)) for b in step.buckets)
    assert step.hidden * step.communication_s == pytest.approx(beside)
    assert beside + step.exposed_s == pytest.approx(step.communication_s)
    assert step.communication_s == pytest.approx(
        sum(collective_time("all_reduce", "ring", bucket.num_bytes, 8, on.link) for bucket in step.buckets))


@pytest.mark.parametrize("model, millions", [
    ("GPT of this course, 11M", 10.8), ("GPT-2, 124M", 124.4), ("GPT-2 XL, 1.6B", 1557.6)])
def test_models_have_the_parameters_of_their_names_and_backward_takes_4_flops_for_each_and_token(model, millions):
    shape = MODELS[model]
    pieces = shape.pieces(flops_per_s=1e12)
    num = sum(piece.gradient_bytes for piece in pieces) / 4
    assert num / 1e6 == pytest.approx(millions, rel=2e-3)
    positions = shape.sequence_length * shape.hidden_size  # looked up, not multiplied
    assert sum(piece.backward_s for piece in pieces) == pytest.approx(4 * (num - positions) * shape.num_tokens / 1e12)


def test_the_widget_says_what_the_simulation_found():
    shown = BucketOverlap(bucket_cap_mb=25, num_ranks=8)
    step = shown.overlap()
    assert repr(shown) == (
        "BucketOverlap, GPT-2, 124M on 8 ranks of A100, InfiniBand HDR, buckets: 25 MiB: 56% of the communication is "
        "hidden behind backward: 16.3 ms of 37.1 ms are left; 17 all-reduces, the largest of 147 MiB. Each "
        "gradient alone would leave 29.4 ms, one message for all 35 ms; best of these: 25 MiB, 16.3 ms.")
    assert (percent(step.hidden), seconds(step.exposed_s)) == ("56%", "16.3 ms")


def test_every_combination_has_frames_that_json_can_hold_and_a_cap_of_ones_own_joins_the_chart():
    shown = BucketOverlap(bucket_cap_mb=40)
    for model in MODELS:
        for on, ranks in shown.choices["machines"].items():
            with shown.hold_trait_notifications():
                shown.model, shown.machine, shown.num_ranks = model, on, ranks[-1]
            frames = json.loads(json.dumps(shown.frames))
            assert [present for *_, present in frames["sweep"]].count(True) == 1
            assert ["40 MiB"] == [cap for cap, _, _, present in frames["sweep"] if present]
            assert 4 <= len(frames["ticks"]) <= 14


@pytest.mark.parametrize("wrong, words", [
    ({"bucket_cap_mb": -1}, "bucket_cap_mb=-1"), ({"bucket_cap_mb": 2.5}, "whole number"),
    ({"num_ranks": 1}, "2 or more"), ({"model": []}, "model=.* expected one of"),
    ({"machine": "abacus"}, "machine='abacus': expected one of 'A100, NVLink 3'"), ({"model": None}, "model=None"),
    ({"machine": "A100, NVLink 3", "num_ranks": 16}, "at most 8 with A100, NVLink 3"),
    ({"cap": 25}, "no parameter cap"),
])
def test_what_cannot_be_simulated_is_refused_with_the_reason(wrong, words):
    with pytest.raises(BadParameter, match=words):
        BucketOverlap(**wrong)


@pytest.mark.parametrize("cap_mb", [0, 25, 10_000])
def test_the_picture_shows_work_messages_and_waiting(cap_mb):
    (width, height), colours = size_and_colours(to_png(BucketOverlap(bucket_cap_mb=cap_mb).picture()))
    assert width > 900 and height > 400 and colours > 6


@pytest.mark.parametrize("value, words", [
    (0, "0 s"), (1.6e-5, "16 µs"), (0.000_38, "380 µs"), (0.000_999_8, "1 ms"), (0.0163, "16.3 ms"), (81.04, "81 s"),
    (0.99996, "1 s"), (250.2, "250 s"), (1234.0, "1234 s")])
def test_times_have_three_figures_and_a_unit(value, words):
    assert seconds(value) == words


@pytest.mark.parametrize("end", [1e-5, 0.0488, 1.0, 99.0])
def test_ticks_are_round_and_cover_the_step(end):
    at = ticks(end)
    assert at[0] == 0 and 5 <= len(at) <= 14 and at[-1] <= end < at[-1] + 2 * at[1]
