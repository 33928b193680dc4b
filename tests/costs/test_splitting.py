"""What a layer sends when it is cut, and how far one can cut it."""

from dataclasses import replace

import pytest

from course_lib.costs.flops import count_parameters
from course_lib.costs.links import Link
from course_lib.costs.network import Network, network_of
from course_lib.costs.splitting import (
    hidden_seconds,
    largest_t,
    split_layer_seconds,
    split_parameters,
    ulysses_key_heads,
)
from course_lib.facts import Shape

GPT_3 = Shape(num_layers=96, hidden_size=12288, num_heads=96, num_kv_heads=96, ffn_size=4 * 12288,
              vocab_size=50257, sequence_length=2048)


@pytest.mark.parametrize("num_tokens", [1, 2048])
def test_at_the_largest_t_sending_takes_as_long_as_computing_whatever_the_batch(num_tokens):
    F, W = 312e12, 300e9
    one_link = Network(1024, Link.of_rate(W), Link.of_rate(W), 1024)  # no latency, no node to leave
    t = largest_t(GPT_3, F, W)
    assert t == pytest.approx(1 + 9 * 12288 * W / (2 * F))
    for below in (int(t), int(t) + 1):
        computing, sending = split_layer_seconds(GPT_3, num_tokens, one_link.group(below), F)
        assert (sending < computing) == (below < t)


def test_latency_makes_short_messages_worse_than_the_bound_and_whole_nodes_better_than_one_card():
    h100 = network_of("H100")
    ratio = {(stride, tokens): sending / computing for stride in (1, 8) for tokens in (16, 8192)
             for computing, sending in [split_layer_seconds(GPT_3, tokens, h100.group(8, stride), 989e12)]}
    assert ratio[1, 16] > 5 * ratio[1, 8192] and 8 < ratio[8, 8192] / ratio[1, 8192] < 9.5
    two_nodes, one_each = (split_layer_seconds(GPT_3, 10**6, h100.group(16, stride), 989e12)[1] for stride in (1, 8))
    assert one_each / two_nodes == pytest.approx(8, rel=0.01)


def test_half_of_the_messages_hide_in_backward_while_they_are_shorter_than_the_products_beside_them():
    h100 = network_of("H100")
    for shape, columns, numbers in (
            (GPT_3, (3, 4), 12),  # in h^2
            (replace(GPT_3, num_kv_heads=24, gated=True), (1.5, 8), 2.5 + 12)):
        sending = split_layer_seconds(shape, 10**6, h100.group(2), 989e12)[1]
        assert hidden_seconds(shape, 10**6, h100.group(2), 989e12) == pytest.approx(sending / 2)
        computing, sending = split_layer_seconds(shape, 10**6, h100.group(512), 989e12)
        assert computing == pytest.approx(6 * numbers * 12288**2 * 10**6 / 512 / 989e12) and sending > computing
        assert hidden_seconds(shape, 10**6, h100.group(512), 989e12) == pytest.approx(  # backward's own: a third of all
            computing / 3 * sum(columns) / numbers)


def test_one_device_holds_every_parameter_and_many_hold_a_share_of_all_but_vectors():
    assert split_parameters(GPT_3, 1) == count_parameters(GPT_3)
    whole = 96 * 2 * 12288 + 12288  # the norms of a shape without biases
    assert split_parameters(GPT_3, 8) == (count_parameters(GPT_3) - whole) / 8 + whole
    biased = replace(GPT_3, biases=True, tied=True, learned_positions=True, num_kv_heads=24, gated=True)
    h, f = 12288, 4 * 12288
    cut = 50257 * h + 96 * (2.5 * h * h + 3 * h * f + 1.5 * h + 2 * f)  # vocabulary; q, k, v, output; MLP; biases
    assert split_parameters(biased, 8) == cut / 8 + 2048 * h + 2 * h + 96 * (4 * h + 2 * h)


def test_key_heads_are_repeated_as_often_as_needed_and_no_more():
    assert [ulysses_key_heads(12, K, 4) for K in (12, 4, 2, 1)] == [12, 4, 4, 4]
    assert ulysses_key_heads(6, 2, 3) == 6 and ulysses_key_heads(32, 8, 8) == 8 and ulysses_key_heads(32, 8, 16) == 16
