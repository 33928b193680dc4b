"""What sharding costs and saves, to the byte: formulas, and what is measured on ranks."""

import gc
from itertools import product

import pytest
import torch
import torch.distributed as dist

from course_lib.costs.memory import Memory
from course_lib.costs.sharding import sent_bytes
from course_lib.reference import GPT, GPTConfig, batches
from course_lib.runtime import launch, record_communication, record_memory, record_timeline, span
from course_lib.zero import device_memory, held_bytes, step_peak, watch
from tests.ranks import on_ranks
from tests.zero.cases import STAGES, sharded

BUCKET = 1 << 17  # bytes: a fifth of the small model
SMALL = GPTConfig(num_layers=4, hidden_size=64, num_heads=4, vocab_size=256, sequence_length=32)
ODD = GPTConfig(num_layers=2, hidden_size=30, num_heads=3, vocab_size=37, sequence_length=11)  # nothing divides


def build(stage, config=SMALL, **how):
    torch.manual_seed(0)
    return sharded(stage, GPT(config), how=how if stage == 3 else {"bucket_cap_mb": BUCKET / 2**20} | how)


def loss_of(model, number, rank, n, rows):
    """Of one rank's rows of a batch. In a function of its own: what it does not return is gone before backward."""
    config = getattr(model, "module", model).config
    tokens = batches(number, rank, n, batch_size=rows * n, sequence_length=config.sequence_length)
    return model(*(part % config.vocab_size for part in tokens))[1]


def backward(model, number, rows=2):
    loss_of(model, number, dist.get_rank(), dist.get_world_size(), rows).backward()


def sizes(config):
    return [p.numel() for p in GPT(config).parameters()]


@on_ranks(3, 4)
def test_what_a_rank_holds_is_the_formula_to_the_byte_and_nothing_else():
    n = dist.get_world_size()
    for stage, config in product(STAGES, (ODD,) if n == 3 else (SMALL,)):
        model, optimizer = build(stage, config)
        with record_memory(model=model, optimizer=optimizer) as log:
            for number in range(2):
                optimizer.zero_grad()
                backward(model, number)
                optimizer.step()
            gc.collect()
            held = dict(log.by_kind)
        expected = held_bytes(sizes(config), n, stage, dist.get_rank(), BUCKET)
        assert Memory(*(held[kind] for kind in ("parameters", "gradients", "optimizer_state"))) == expected, stage
        assert held["activations"] + held["other"] == 0, stage


WIDE = GPTConfig(num_layers=3, hidden_size=64, num_heads=4, vocab_size=2048, sequence_length=32)  # most is embedding
FEW_LAYERS = GPTConfig(num_layers=2, hidden_size=64, num_heads=4, vocab_size=256, sequence_length=32)
PEAKS = [(4, FEW_LAYERS, 1), (3, ODD, 4), (2, WIDE, 4), (1, SMALL, 4), (4, SMALL, 16), (2, FEW_LAYERS, 4)]


@pytest.mark.sweep("case", few=PEAKS[:3], all=PEAKS, words=f"3 models and batches of {len(PEAKS)}")
def test_the_peak_of_a_step_is_the_predicted_one_to_the_byte(case):
    world_size, config, rows = case

    model = GPT(config)
    seen = watch(model, lambda: loss_of(model, 0, 0, 1, rows))

    def body():
        for stage in STAGES:
            model, optimizer = build(stage, config)
            peaks = []
            for number in range(3):
                optimizer.zero_grad()
                with record_memory(model=model, optimizer=optimizer) as log:
                    backward(model, number, rows)
                    optimizer.step()
                peaks.append(log.peak)
            # The first step makes the optimiser's state; of the two others, since gloo's own threads may let go of a
            # message a moment after they said that it is sent
            assert min(peaks[1:]) == step_peak(seen, world_size, stage, dist.get_rank(), BUCKET), stage

    launch(body, world_size=world_size)


def test_a_model_that_cannot_be_watched_is_refused():
    model = GPT(ODD)
    model.head.weight.requires_grad_(False)
    with pytest.raises(ValueError, match="all trained; got .*float32.* and 1 that need no gradient"):
        watch(model, lambda: None)


@on_ranks(1, 2, 3, 4)
def test_stages_1_and_2_send_what_data_parallelism_sends_and_stage_3_half_as_much_again():
    n, sent = dist.get_world_size(), []
    for stage in STAGES:
        model, optimizer = build(stage)
        with record_communication() as log:
            backward(model, 0)
            optimizer.step()
        sent.append(log.sent_bytes)
    model = torch.nn.parallel.DistributedDataParallel(GPT(SMALL))
    with record_communication() as log:
        backward(model, 0)
    one, two, three = sent
    if n == 3:  # padding: a number or two in each bucket, and in each parameter
        S = sum(-(-size // n) for size in sizes(SMALL))
        assert three == 3 * (n - 1) * S * 4 and log.sent_bytes <= one == two < 1.001 * log.sent_bytes
    else:
        assert one == two == log.sent_bytes == 2 * (n - 1) * sum(sizes(SMALL)) * 4 / n and three == 1.5 * one


@on_ranks(2)
def test_micro_batches_cost_stage_1_nothing_and_the_others_a_reduce_scatter_each():
    M = sum(sizes(SMALL)) * 4  # (n-1)/n = 1/2 of M a message; without resharding gathered once for both directions
    for stage, how, messages in ((1, {}, 2), (2, {}, 4), (3, {}, 9), (3, {"reshard_after_forward": False}, 6)):
        model, optimizer = build(stage, **how)
        with record_communication() as log:
            for number in range(3):
                backward(model, number)
            optimizer.step()
        assert log.sent_bytes == messages * M / 2, (stage, how)
        assert how or log.sent_bytes == sent_bytes(M / 4, 2, stage, bytes_per_number=4, micro_batches=3), stage


@on_ranks(2)
def test_what_offload_moves_lies_on_the_host_to_the_byte():
    model, optimizer = build(2, offload=True)
    backward(model, 0)
    optimizer.step()
    blocks = [block for bucket in optimizer.buckets for block in (bucket.master, bucket.block_gradient)]
    kept = [value for of_one in optimizer.inner.state.values() for value in of_one.values()]
    on_host = sum(value.nbytes for value in (*blocks, *kept) if value is not None)
    counts = 4 * len(optimizer.state)  # AdamW counts steps
    assert on_host == device_memory(sum(sizes(SMALL)), 2, 2, "fp32", offload=True).host + counts


@on_ranks(2)
def test_nothing_gathered_outlives_its_use_and_one_block_is_whole_at_a_time():
    model, _ = build(3, prefetch=0)
    whole = {unit.name: [p.padded.untyped_storage() for p in unit.parameters] for unit in model.units}
    seen, kept = [], []

    def gathered():
        return sorted(name for name, storages in whole.items() if any(s.nbytes() for s in storages))

    for block in model.module.blocks:
        block.mlp.register_forward_hook(lambda mlp, *_: kept.append(mlp.input.weight.t()))  # a reference keeps nothing
        block.mlp.register_forward_hook(lambda *_: seen.append(gathered()))
        block.mlp.register_full_backward_hook(lambda *_: seen.append(gathered()))
    assert gathered() == []
    backward(model, 0)
    assert gathered() == []
    with torch.no_grad():
        model(torch.zeros(1, 4, dtype=torch.int64))
    assert gathered() == []
    assert seen == [["", f"blocks.{number}"] for number in (0, 1, 2, 3, 3, 2, 1, 0, 0, 1, 2, 3)]
    assert kept[0].shape == (64, 256) and not any(view.untyped_storage().nbytes() for view in kept)


@pytest.mark.parametrize("stage", [2, 3])
@on_ranks(2)
def test_gradients_leave_while_backward_runs_and_parameters_arrive_before_they_are_needed(stage):
    def mark(*_):
        with span("first block"):
            pass

    model, _ = build(stage)
    getattr(model, "module", model).blocks[0].mlp.register_full_backward_hook(mark)
    backward(model, 0)
    with record_timeline() as timeline:
        backward(model, 1)
    first = min(event.start_s for event in timeline.events if event.name == "first block")
    before = [event.start_s < first for event in timeline.events if event.name == "send"]
    assert len(before) > sum(before) > len(before) / 2
