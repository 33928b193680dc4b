"""record_communication: the bytes are those one counts by hand, for every operation and every front end."""

import math
import pickle
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from course_lib.runtime import launch, record_communication, record_timeline
from course_lib.runtime.instruments import wire


def record_counts(communicate):
    """What `communicate` recorded on this rank: (op, message bytes, sent bytes) for each event."""
    with record_communication() as log:
        communicate()
    return [(event.op, event.message_bytes, event.sent_bytes) for event in log.events]


def block(size=12, dtype=torch.float32):
    return torch.ones(size, dtype=dtype)  # 12 floats: 48 bytes, divisible among 1, 2, 3 and 4 ranks


def cases(n, r):
    """For rank r of n: name -> (what it calls, the op, the message's bytes, the bytes that it sends in a ring)."""
    blocks = [block() for _ in range(n)]
    rows = n * (n + 1) // 2  # uneven all_to_all: j + 1 rows of 4 floats (16 bytes) to rank j
    uneven = torch.empty(n * (r + 1), 4), torch.ones(rows, 4), [r + 1] * n, [j + 1 for j in range(n)]
    world = dist.group.WORLD

    def two_in_one():
        with dist._coalescing_manager():
            dist.all_reduce(block())
            dist.all_reduce(block(6))

    def reduced(size):
        return "all_reduce", size, Fraction(2 * (n - 1), n) * size

    gathered, scattered = (("all_gather", 48 * n, 48 * (n - 1)), ("reduce_scatter", 48 * n, 48 * (n - 1)))
    exchanged = ("all_to_all", 8 * n * (n + 1), 8 * n * (n + 1) - 16 * (r + 1))
    return {
        "all_reduce": (lambda: dist.all_reduce(block()), *reduced(48)),
        "all_reduce later": (lambda: dist.all_reduce(block(), async_op=True).wait(), *reduced(48)),
        "all_reduce bf16": (lambda: dist.all_reduce(block(dtype=torch.bfloat16)), *reduced(24)),
        "all_reduce coalesced": (two_in_one, *reduced(72)),
        "all_gather": (lambda: dist.all_gather(blocks, block()), *gathered),
        "all_gather_into_tensor": (lambda: dist.all_gather_into_tensor(block(12 * n), block()), *gathered),
        "reduce_scatter": (lambda: dist.reduce_scatter(block(), blocks), *scattered),
        "reduce_scatter_tensor": (lambda: dist.reduce_scatter_tensor(block(), block(12 * n)), *scattered),
        "all_to_all_single": (lambda: dist.all_to_all_single(block(12 * n), block(12 * n)),
                              "all_to_all", 48 * n, 48 * (n - 1)),
        "all_to_all uneven": (lambda: dist.all_to_all_single(*uneven), *exchanged),
        "broadcast": (lambda: dist.broadcast(block(), src=n - 1),  # the ring ends before its root
                      "broadcast", 48, 0 if r == (n - 2) % n else 48),
        "reduce": (lambda: dist.reduce(block(), dst=0), "reduce", 48, 0 if r == 0 else 48),
        "gather": (lambda: dist.gather(block(), blocks if r == 0 else None, dst=0), "gather", 48 * n, 48 * (r > 0)),
        "scatter": (lambda: dist.scatter(block(), blocks if r == 0 else None, src=0),
                    "scatter", 48 * n, 48 * (n - 1) * (r == 0)),
        "barrier": (lambda: dist.barrier(), "barrier", 0, 0),
        "monitored_barrier": (lambda: dist.monitored_barrier(), "barrier", 0, 0),
        "functional all_reduce": (lambda: functional.all_reduce(block(), "sum", world).sum(), *reduced(48)),
        "functional all_reduce coalesced": (
            lambda: functional.all_reduce_coalesced([block(), block(6)], "sum", world), *reduced(72)),
        "functional all_gather": (lambda: functional.all_gather_tensor(block(), 0, world).sum(), *gathered),
        "functional reduce_scatter": (
            lambda: functional.reduce_scatter_tensor(block(12 * n), "sum", 0, world).sum(), *scattered),
        "functional all_to_all": (lambda: functional.all_to_all_single(*uneven[1:], world).sum(), *exchanged),
    }


def every_collective():
    each = cases(dist.get_world_size(), dist.get_rank())
    return {name: record_counts(call) for name, (call, *_) in each.items()}


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_every_collective_moves_the_bytes_one_counts_by_hand(world_size):
    for rank, seen in enumerate(launch(every_collective, world_size=world_size)):
        assert seen == {name: [tuple(by_hand)] for name, (_, *by_hand) in cases(world_size, rank).items()}


def messages():
    """In a ring one by one, then as a batch of halves in bf16; then in groups of two, the odd ranks' with a message."""
    n, r = dist.get_world_size(), dist.get_rank()
    right, left, half = (r + 1) % n, (r - 1) % n, block(6, torch.bfloat16)
    odd, even = dist.new_group([1, 3]), dist.new_group([0, 2])
    group = odd if r % 2 else even
    with record_communication() as log:
        sending = dist.isend(block(), right)
        dist.recv(torch.empty(12), left)
        sending.wait()
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, half, right), dist.P2POp(dist.irecv, half, left)]):
            work.wait()
        dist.all_reduce(block(), group=group)
        dist.broadcast(block(), src=3 if r % 2 else 2, group=group)
        if r == 3:
            dist.send(block(6, torch.float64), group=odd, group_dst=0)
        if r == 1:
            dist.recv(block(6, torch.float64), src=None, group=odd)
    return log


def test_messages_and_groups_count_with_global_ranks_also_in_a_merged_log(snapshot):
    logs, world = launch(messages, world_size=4), (0, 1, 2, 3)
    for rank, log in enumerate(logs):
        right, left, pair = (rank + 1) % 4, (rank - 1) % 4, (1, 3) if rank % 2 else (0, 2)
        in_pair = {1: [("recv", None, pair, 48, 0)], 3: [("send", 1, pair, 48, 48)]}.get(rank, [])
        assert [(e.op, e.peer, e.group, e.message_bytes, e.sent_bytes) for e in log.events] == [
            ("send", right, world, 48, 48), ("recv", left, world, 48, 0),
            ("send", right, world, 12, 12), ("recv", left, world, 12, 0),
            ("all_reduce", None, pair, 48, 48), ("broadcast", None, pair, 48, 0 if rank == pair[0] else 48), *in_pair]
        assert [event.dtype for event in log.events[1:4]] == [torch.float32, torch.bfloat16, torch.bfloat16]
    assert (logs[0].calls("send"), logs[0].calls(), logs[0].message_bytes("recv"), logs[0].message_bytes()) == (
        2, 6, 60, 2 * 60 + 2 * 48)
    merged = logs.communication
    assert "3 → 1" in merged.html() and "1 ← any" in merged.html() and "(1, 3)" in merged.html()
    sent = [60 + 48, 60 + 48, 60 + 96, 60 + 144]
    assert [merged.by_rank(rank).sent_bytes for rank in merged.ranks] == sent and merged.sent_bytes == sum(sent)
    drawn = pickle.loads(pickle.dumps(merged))._repr_mimebundle_()
    assert drawn["text/plain"] == repr(merged) == snapshot and drawn["text/html"].count("<tr>") == 1 + 8 + 1
    with pytest.raises(ValueError, match="rank 7 recorded no communication"):
        merged.by_rank(7)


def objects_and_oddities():
    n, r = dist.get_world_size(), dist.get_rank()
    with record_communication() as objects:
        dist.all_gather_object([None] * n, "x" * (r + 1))
    with record_communication() as sparse:
        dist.all_reduce(torch.eye(4).to_sparse())
    with record_communication() as batch:
        pair = torch.ops._c10d_functional.batch_p2p_ops(
            ["isend", "irecv"], [1 - r, 1 - r], [0, 0], [block(), block()], dist.group.WORLD.group_name)
        torch.ops._c10d_functional.wait_tensor(pair[1])
    with record_communication() as outer:
        with record_communication() as inner:  # has seen the same as the outer one when it closes
            dist.all_reduce(block())
        with suppress(RuntimeError), record_communication() as failed:
            dist.all_reduce(block())
            raise RuntimeError("in the middle of a step")
        dist.all_reduce(block())
    return objects, sparse, batch, outer, inner, failed


def test_objects_nesting_exceptions_and_operations_without_a_rule():
    results = launch(objects_and_oddities, world_size=2)
    objects, sparse, batch, outer, inner, failed = results[0]
    assert [event.op for event in objects.events] == ["all_gather", "all_gather"]  # sizes, then pickled bytes
    assert objects.events[0].message_bytes == 2 * 8
    assert (outer.calls(), inner.calls(), failed.calls(), sparse.calls("all_reduce")) == (3, 1, 1, 1)
    with pytest.raises(ValueError, match="all_reduce on group .* has no rule"):
        _ = sparse.sent_bytes
    assert "unknown" in sparse.html()
    # an operator that torch's compiler alone uses
    assert [(e.op, e.message_bytes, e.sent_bytes, e.peer) for e in batch.events] == [
        ("send", 48, 48, 1), ("recv", 48, 0, 1)]
    assert results.communication.calls() == 2 * (2 + 1 + 2 + 3), "of nested recorders the outermost alone is merged"


# What torch's own parallelism communicates

LAYER_BYTES = 4 * (8 * 8 + 8)  # nn.Linear(8, 8), fp32


def two_layers():
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))


def torchs_own():
    n, r = dist.get_world_size(), dist.get_rank()
    mesh = init_device_mesh("cpu", (n,))

    def backward_hooks():
        model = two_layers()
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(lambda p: dist.all_reduce(p.grad))
        model(torch.ones(2, 8)).sum().backward()

    ddp = nn.parallel.DistributedDataParallel(two_layers())
    fsdp = two_layers()
    for layer in (fsdp[0], fsdp[2], fsdp):
        fully_shard(layer, mesh=mesh)
    parallel = parallelize_module(two_layers(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    rows = distribute_tensor(torch.ones(8, 8), mesh, [Shard(0)])
    partial = DTensor.from_local(torch.ones(8, 8), mesh, [Partial()])
    leaf = torch.ones(8, requires_grad=True)
    world = dist.group.WORLD
    stage = PipelineStage(nn.Linear(8, 8), r, num_stages=n, device=torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)

    def pipeline():
        schedule.step(*([] if r else [torch.ones(16, 8)]), target=torch.ones(16, 8) if r == n - 1 else None)

    pipeline()  # the first step also exchanges shapes
    return {
        "hooks": record_counts(backward_hooks),
        "ddp": record_counts(lambda: ddp(torch.ones(2, 8)).sum().backward()),
        "fsdp": record_counts(lambda: fsdp(torch.ones(2, 8)).sum().backward()),
        "tensor parallel": record_counts(lambda: parallel(torch.ones(2, 8, requires_grad=True)).sum().backward()),
        "gather": record_counts(lambda: rows.full_tensor()),
        "sum": record_counts(lambda: partial.redistribute(mesh, [Replicate()]).to_local().sum()),
        "sum of shards": record_counts(lambda: partial.redistribute(mesh, [Shard(0)]).to_local().sum()),
        "autograd": record_counts(lambda: functional.all_gather_tensor_autograd(leaf, 0, world).sum().backward()),
        "pipeline": record_counts(pipeline),
    }


@pytest.mark.parametrize("world_size", [2, 4])
def test_hooks_ddp_fsdp2_dtensor_and_the_pipeline_are_seen_in_full(world_size):
    n = world_size

    def all_reduce(message):
        return ("all_reduce", message, 2 * (n - 1) * message // n)

    def half(op, message):
        return (op, message, (n - 1) * message // n)

    gathered, scattered = half("all_gather", LAYER_BYTES), half("reduce_scatter", LAYER_BYTES)
    for rank, seen in enumerate(launch(torchs_own, world_size=n)):
        neighbours = (rank > 0) + (rank < n - 1)  # an activation one way and a gradient the other: 4 rows of 8 floats
        rows = [("recv", 128, 0)] * 4 * neighbours + [("send", 128, 128)] * 4 * neighbours
        assert {name: sorted(events) for name, events in seen.items()} == {
            "hooks": sorted([all_reduce(256), all_reduce(32)] * 2),
            "ddp": [all_reduce(2 * LAYER_BYTES)],  # all gradients in one bucket
            "fsdp": [gathered] * 4 + [scattered] * 2,  # gathered twice
            "tensor parallel": [all_reduce(2 * 8 * 4)] * 2,  # one forward, one backward
            "gather": [half("all_gather", 256)],
            "sum": [all_reduce(256)],
            "sum of shards": [half("reduce_scatter", 256)],
            "autograd": [half("all_gather", 32 * n), half("reduce_scatter", 32 * n)],
            "pipeline": rows}


def test_without_a_process_group_the_log_is_empty_and_says_so():
    with record_communication() as log:
        torch.ones(2).sum()
    assert (log.ranks, log.events, log.sent_bytes, log.calls()) == ((0,), [], 0, 0)
    assert repr(log) == "CommunicationLog: rank 0 communicated nothing" and log.html() is None


# Any thread, any API, never twice; and what the system saw

def call_from_everywhere():
    """The same sum five ways, of 48 bytes each, and every case from three threads at once."""
    n, r = dist.get_world_size(), dist.get_rank()
    world = dist.group.WORLD

    def compiled(x):
        return functional.all_reduce(x, "sum", world) + 0

    ways = {
        "dist": lambda: dist.all_reduce(block()),
        "functional": lambda: functional.wait_tensor(functional.all_reduce(block(), "sum", world)),
        "compiled": lambda: torch.compile(compiled, backend="eager")(block()),
        "the group's method": lambda: world.allreduce([block()]).wait(),
        "the backend's method": lambda: world._get_backend(torch.device("cpu")).allreduce([block()]).wait(),
    }
    found = {}
    for name, call in ways.items():
        with record_communication() as log, record_timeline() as timeline:
            call()
        found[name] = log.calls(), log.sent_bytes, [event.name for event in timeline.events]
    groups = [dist.new_group() for _ in range(3)]  # a thread each, so that all ranks call in one order

    def all_cases(group):
        for call in (dist.all_reduce, dist.broadcast):
            call(block(), **({"src": 0} if call is dist.broadcast else {}), group=group)
        dist.all_gather_into_tensor(block(12 * n), block(), group=group)
        dist.reduce_scatter_tensor(block(), block(12 * n), group=group)
        dist.all_to_all_single(block(12 * n), block(12 * n), group=group)
        functional.wait_tensor(functional.all_reduce(block(), "sum", group))
        if r < 2:
            (dist.send if r == 0 else dist.recv)(block(), 1 - r, group=group)

    with record_communication() as alone:
        all_cases(groups[0])
    with record_communication() as together:
        threads = [threading.Thread(target=all_cases, args=(group,)) for group in groups]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return found, Counter(event.op for event in alone.events), Counter(event.op for event in together.events)


@pytest.mark.parametrize("world_size", [2, 3])
def test_a_call_is_counted_once_in_any_thread_and_through_any_api_and_is_a_bar_of_the_timeline(world_size):
    for found, alone, together in launch(call_from_everywhere, world_size=world_size):
        assert found == dict.fromkeys(found, (1, Fraction(2 * (world_size - 1), world_size) * 48, ["all_reduce"]))
        assert len(alone) >= 5 and together == Counter({op: 3 * count for op, count in alone.items()})


def writes_on_the_wire():
    n, r, numbers = dist.get_world_size(), dist.get_rank(), 12 * 40_000
    calls = {
        "all_reduce": lambda: dist.all_reduce(torch.ones(numbers)),
        "all_gather": lambda: dist.all_gather_into_tensor(torch.empty(numbers), torch.ones(numbers // n)),
        "all_to_all": lambda: dist.all_to_all_single(torch.empty(numbers), torch.ones(numbers)),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(torch.empty(numbers // n), torch.ones(numbers)),
        "broadcast": lambda: dist.broadcast(torch.ones(numbers), 0),
        "send": lambda: dist.send(torch.ones(numbers), 1) if r == 0 else r == 1 and dist.recv(torch.ones(numbers), 0),
    }
    with record_communication() as log:
        for call in calls.values():
            call()
            dist.barrier()
    return log


@pytest.mark.skipif(wire.Sockets().read() is None, reason="nobody counts here")
@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_on_the_wire_gloo_sends_what_a_ring_would_but_twice_that_of_a_reduce_scatter(world_size):
    log = launch(writes_on_the_wire, world_size=world_size, device="cpu").communication
    M, n = 4 * 12 * 40_000, world_size
    total = {op: log.wire_bytes(op) / M for op in ("all_reduce", "all_gather", "all_to_all", "reduce_scatter",
                                                   "broadcast", "send")}
    as_a_ring = {"all_reduce": 2 * (n - 1), "all_gather": n - 1, "all_to_all": n - 1, "broadcast": n - 1, "send": 1}
    assert {op: total[op] for op in as_a_ring} == pytest.approx(as_a_ring, rel=0.01)
    assert total["reduce_scatter"] == pytest.approx(2 * (n - 1), rel=0.01)  # gloo makes an all-reduce of it
    assert log.wire_bytes() >= sum(log.wire_bytes(op) for op in total)
    root = log.by_rank(0).wire_bytes("broadcast") / M
    assert root == pytest.approx(math.ceil(math.log2(n)), rel=0.01)  # a tree, not a ring


@pytest.mark.skipif(wire.Sockets().read() is None, reason="nobody counts here")
@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_what_is_counted_agrees_with_the_wire_and_half_or_twice_of_it_does_not(world_size):
    def call_all():
        n, numbers = dist.get_world_size(), 12 * 40_000
        with record_communication() as log:
            dist.all_reduce(torch.ones(numbers))
            dist.all_gather(list(torch.empty(n, numbers // n)), torch.ones(numbers // n))
            dist.reduce_scatter(torch.empty(numbers // n), list(torch.ones(numbers).chunk(n)))
            dist.all_to_all_single(torch.empty(numbers), torch.ones(numbers), async_op=True).wait()
            dist.broadcast(torch.ones(100), 0)
            dist.reduce(torch.ones(100), 0)
            dist.barrier()
        return log

    for log in launch(call_all, world_size=world_size, device="cpu"):
        assert log.agrees_with_wire()
        for wrong in (0.5, 0.9, 1.1, 2):
            events = [replace(event, sent_bytes=Fraction(event.sent_bytes) * Fraction(wrong)) for event in log.events]
            assert not replace(log, events=events).agrees_with_wire()
        assert replace(log, wire=dict.fromkeys(log.ranks)).agrees_with_wire()  # nobody counted


def test_calls_that_overlap_share_the_wire_and_say_so():
    def overlap():
        r, others = dist.get_rank(), dist.new_group()  # rank 0's all_reduce cannot end before its broadcast has begun
        with record_communication() as log:
            if r == 1:
                dist.broadcast(torch.ones(10), 0, group=others)
            work = dist.all_reduce(torch.ones(1000), async_op=True)
            if r == 0:
                dist.broadcast(torch.ones(10), 0, group=others)
            work.wait()
        return log

    log = launch(overlap, world_size=2, device="cpu").communication
    assert log.wire_bytes("all_reduce") is None and log.wire_bytes() > 2 * 4000
    assert "with others" in log.html() and "on the wire" in log.html()


def stands_in_front():
    return torch._C._dispatch_has_kernel_for_dispatch_key("c10d::allreduce_", "BackendSelect")


def test_while_nobody_records_nothing_stands_in_front_of_an_operator():
    def look():
        before = stands_in_front()
        with record_communication(), record_timeline():
            inside = stands_in_front()
        with suppress(RuntimeError), record_communication():
            raise RuntimeError("in the middle")
        return before, inside, stands_in_front()

    assert launch(look, world_size=1, device="cpu") == [(False, True, False)]
