"""Every formula says what it was given and what it expected."""

import math

import pytest

from course_lib.costs import money
from course_lib.costs.flops import activation_bytes, activation_bytes_per_layer, step_flops, training_flops
from course_lib.costs.links import Link, collective_time, fit_link, hardware_link
from course_lib.costs.memory import CachingAllocator, device_memory, lora_parameters, reserve, training_memory
from course_lib.costs.money import kilowatt_hours, training_seconds
from course_lib.costs.network import network_of
from course_lib.costs.scaling import amdahl, fit_amdahl, simulate_stragglers
from course_lib.costs.sharding import cut_buckets
from course_lib.costs.splitting import expert_capacity, nodes_of_a_token, split_layer_bytes, ulysses_key_heads
from course_lib.facts import model

SHAPE, LINK, H100 = model("GPT-3").shape, Link(1.0, 0.0), network_of("H100")


@pytest.mark.parametrize(("mistake", "said"), [
    (lambda: activation_bytes(SHAPE, 1, tensor_parallel=5), "=5: expected a number that divides the 96 heads"),
    (lambda: activation_bytes(SHAPE, 1, tensor_parallel=0), "tensor_parallel=0"),
    (lambda: activation_bytes(SHAPE, 1, sequence_parallel=True), "with tensor_parallel=1: expected at least 2"),
    (lambda: activation_bytes_per_layer(SHAPE, 1, recompute="attention"), "expected one of none, selective, full"),
    (lambda: cut_buckets([1, -1], 10), "expected bytes, 0 or more"), (lambda: cut_buckets([1], -1), "cap_bytes=-1"),
    (lambda: reserve([(1, 5), (1, 5)]), "tensor 1 is made twice"),
    (lambda: reserve([(1, -5)]), "tensor 1 is freed and not there"),
    (lambda: CachingAllocator().allocate(0), "num_bytes=0"),
    (lambda: ulysses_key_heads(12, 4, 5), "12 query heads on 5 ranks"),
    (lambda: expert_capacity(-1, 2, 96, 8), "capacity_factor=-1"),
    (lambda: nodes_of_a_token(8, 3, 2), "8 experts on 3 nodes"),
    (lambda: money.young_interval(0, 1), "delta=0"), (lambda: money.daly_interval(1, -1), "M=-1"),
    (lambda: money.first_order_loss(0, 1, 1), "tau=0"),
    (lambda: money.seconds_between_failures(1, 1, 0, 1), "devices=0"),
    (lambda: training_flops(0, 1e9), "num_parameters=0"), (lambda: step_flops(SHAPE, 1.5), "batch_size=1.5"),
    (lambda: collective_time("all_reduce", "star", 8, 2, LINK), "op='all_reduce' with algorithm='star'"),
    (lambda: collective_time("all_reduce", "ring", -8, 2, LINK), "num_bytes=-8: expected"),
    (lambda: collective_time("all_reduce", "ring", 8, 0, LINK), "world_size=0: expected a whole number of 1"),
    (lambda: collective_time("all_reduce", "ring", 8, 2.5, LINK), "world_size=2.5: expected a whole number"),
    (lambda: Link(-1e-6, 0.0), "alpha_s=-1e-06: expected"),
    (lambda: Link(0.0, math.nan), "beta_s_per_byte=nan: expected"),
    (lambda: fit_link([1, 2], [1.0]), "2 sizes and 1 times: expected two lists of the same length"),
    (lambda: fit_link([4, 4], [1.0, 2.0]), "at least two different sizes"),
    (lambda: fit_link([], []), r"sizes_bytes=\[\]: expected at least two"),
    (lambda: fit_link([-1, 2], [1.0, 2.0]), "expected finite numbers of 0 or more"),
    (lambda: fit_link([1, 2], [0.0, 2.0]), "expected finite numbers above 0"),
    (lambda: hardware_link("carrier pigeon"), "no interconnect is called .carrier pigeon"),
    (lambda: training_memory(7e9, "bf16"), "expected one of fp32, mixed"),
    (lambda: training_memory(7e9, zero_stage=4), "expected 0, 1, 2 or 3"),
    (lambda: training_memory(7e9, num_devices=0), "num_devices=0"),
    (lambda: training_memory(7e9, activations=-1), "activations=-1"),
    (lambda: device_memory(1, 1, 4), "stage=4: expected 0"), (lambda: device_memory(0, 1, 1), "num_parameters=0:"),
    (lambda: device_memory(1, 1, 1, optimizer="lion"), "one of adam"),
    (lambda: device_memory(1, 1, 0, offload=True), "offload=True with stage=0"),
    (lambda: lora_parameters(SHAPE, 8, ("gate",)), "expected different ones of q, k"),
    (lambda: lora_parameters(SHAPE, 8, ("q", "q")), "expected different ones"),
    (lambda: training_seconds(1e20, 8, 312e12, 40), "is it a percentage"),
    (lambda: kilowatt_hours(1, 1, 400, pue=0.9), "1 or more"),
    (lambda: H100.group_at([]), "number of ranks=0: expected"),
    (lambda: H100.group(8).seconds("scan", 1), "op='scan': expected one of all_reduce, all_gather"),
    (lambda: H100.group(0), "n=0: expected a whole number of 1 or more"),
    (lambda: network_of("H1000"), "no accelerator is called 'H1000'"),
    (lambda: network_of("H100", between="pigeons"), "no interconnect is called 'pigeons'"),
    (lambda: network_of("TPU v4"), "no latency of a step over TPU v4 ICI: expected one of NVLink"),
    (lambda: amdahl(90, 8), "parallel_share=90: expected a share from 0 to 1: is it"),
    (lambda: fit_amdahl([1, 1], [1, 1]), "one count above 1"), (lambda: fit_amdahl([1, 2], [1]), "the same length"),
    (lambda: split_layer_bytes(1024, 4096, 0), "t=0: expected a whole number of 1 or more"),
    (lambda: simulate_stragglers("gossip", 0, 2), "scheme='gossip': expected one of synchronous"),
    (lambda: simulate_stragglers("synchronous", -1, 2), "slack=-1"),
    (lambda: simulate_stragglers("local", None, 2), "never averages"),
    (lambda: simulate_stragglers("synchronous", 0, 2, "me"), "who='me'"),
    (lambda: simulate_stragglers("synchronous", 0, 0.5), "slowdown=0.5"),
])
def test_a_mistake_is_told_what_was_given_and_what_was_expected(mistake, said):
    with pytest.raises(ValueError, match=said):
        mistake()
