"""What instruments say of a rank whose device works behind the host: NCCL's way, on the pretended GPU.

A peer that comes late is held back through the store until the other rank has done what the test is about.
"""

import pytest
import torch
import torch.distributed as dist

from course_lib.runtime import (
    device,
    record_communication,
    record_memory,
    record_timeline,
    seconds,
    span,
)
from course_lib.runtime.instruments import pending
from tests.pretend import needed
from tests.pretend.needed import built  # noqa: F401  a fixture
from tests.ranks import gives

pytestmark = pytest.mark.ci
GO = "rank 0 has done its part"


def on(function, *arguments, mode="nccl", **options):
    return needed.on(mode, function, *arguments, **options)


def store():
    return dist.distributed_c10d._get_default_store()


def rank_1_waits():
    if dist.get_rank() == 1:
        store().get(GO)  # blocks until it is there


def rank_0_is_done():
    if dist.get_rank() == 0:
        store().set(GO, "")


def work_on_the_host():
    """Long beside a call that returns at once."""
    values = torch.ones(300, 300, device="cpu")
    for _ in range(10):
        values = values @ values / 300


def events(timeline, lane, rank=0):
    return [event for event in timeline.by_rank(rank).events + timeline.by_rank(rank).waits if event.lane == lane]


# Timeline

def transfer_beside_a_span():
    values = torch.ones(1000)
    dist.all_reduce(values)  # connections are made
    values.sum()
    with record_timeline(), span("step"):
        rank_1_waits()
        work = dist.all_reduce(values, async_op=True)
        with span("beside"):
            torch.ones(200, 200) @ torch.ones(200, 200)
        rank_0_is_done()
        work.wait()
        values.sum()


def test_a_transfer_that_runs_while_a_span_computes_is_hidden_and_its_rest_is_waited_for():
    beside = on(transfer_beside_a_span).timeline
    (call,) = events(beside, "communication")
    assert call.name == "all_reduce" and call.labels == {"bytes": 4000, "group": (0, 1)}
    assert 0 < beside.total_s("beside", rank=0) <= beside.hidden_s(0) < call.duration_s
    step, = (event for event in beside.events if (event.rank, event.name) == (0, "step"))
    assert step.start_s < call.start_s and call.end_s <= step.end_s, "a step lasts until its transfer has ended"
    # It is under way while the host works on, and the stream stands still until it is there.
    assert beside.waiting_s(0) > 0 and max(wait.end_s for wait in beside.waits if wait.rank == 0) >= call.end_s


def synchronous_and_without_a_work():
    """As NCCL does it with async_op=False: the caller's stream is the one that transfers, and no work comes back."""
    values = torch.ones(1000)

    def transfer(group, tensors):
        group._get_backend(device()).allreduce(tensors, dist.AllreduceOptions()).wait()

    all_reduce = pending._wrap_method(transfer, "all_reduce")
    with record_timeline(), span("step"):
        rank_1_waits()
        all_reduce(dist.group.WORLD, [values])
        work_on_the_host()
        rank_0_is_done()
        values.sum()


def test_a_synchronous_transfer_is_waited_for_and_not_hidden_though_the_host_runs_on():
    timeline = on(synchronous_and_without_a_work).timeline
    (call,) = events(timeline, "communication")
    assert call.name == "all_reduce" and "unfinished" not in call.labels
    assert timeline.waiting_s(0) > 0.5 * call.duration_s and timeline.hidden_s(0) < 0.5 * call.duration_s


def batch():
    """Each rank sends to the other and receives; rank 1 later."""
    peer = 1 - dist.get_rank()
    with record_timeline():
        rank_1_waits()
        messages = [dist.P2POp(dist.isend, torch.ones(3), peer), dist.P2POp(dist.irecv, torch.empty(5)[:3], peer)]
        works = dist.batch_isend_irecv(messages)
        with span("beside"):
            torch.ones(200, 200) @ torch.ones(200, 200)
        rank_0_is_done()
        for work in works:
            work.wait()
        torch.ones(1).sum()


def test_each_message_of_a_batch_lasts_until_the_batch_is_done():
    timeline = on(batch).timeline
    calls = events(timeline, "communication")
    assert [(call.name, call.labels) for call in calls] == [("send", {"bytes": 12, "peer": 1}),
                                                            ("recv", {"bytes": 12, "peer": 1})]
    assert timeline.hidden_s(0) >= timeline.total_s("beside", rank=0) > 0
    waited_until = max(wait.end_s for wait in timeline.waits if wait.rank == 0)
    assert all(call.end_s <= waited_until for call in calls)
    assert all(call.end_s > timeline.by_rank(1).events[0].start_s for call in calls)  # rank 1's half was needed


def host_and_gpu():
    own, host = torch.ones(10), torch.ones(10, device="cpu")
    with record_timeline():
        dist.all_reduce(host)
        dist.all_reduce(own)
        dist.barrier()


@pytest.mark.parametrize("mode", ["nccl", "gloo-cuda"])
def test_calls_on_the_hosts_tensors_and_barriers_have_their_bars_and_waits_too(mode):
    timeline = on(host_and_gpu, mode=mode).timeline
    for rank in (0, 1):
        calls = events(timeline, "communication", rank)
        assert [call.name for call in calls] == ["all_reduce", "all_reduce", "barrier"]
        assert all(call.duration_s > 0 for call in calls) and timeline.waiting_s(rank) > 0
    barriers = [event for event in timeline.events if event.name == "barrier"]
    assert min(event.end_s for event in barriers) > max(event.start_s for event in barriers)


@gives([True, True], run=on)
def test_seconds_ends_when_the_device_has_done_what_the_call_gave_it():
    values, works = torch.ones(1000), []
    dist.all_reduce(values)
    rank_1_waits()

    def transfer():
        works.append(dist.all_reduce(values, async_op=True))
        work_on_the_host()
        rank_0_is_done()

    return seconds(transfer) > 0 and works[0].is_completed()


# Memory and bytes

def held(num_on_gpu, num_on_host):
    """Bytes of float32, on the GPU and the host, in two blocks, one in another."""
    before = torch.ones(1000)  # noqa: F841  4096 bytes of the allocator's
    with record_memory() as outer:
        with record_memory() as inner:
            own = torch.ones(num_on_gpu)
        offloaded = torch.ones(num_on_host, device="cpu")
        return outer, inner, float(own[0] + offloaded[0].to(device()))


def test_the_allocators_peak_stands_beside_what_is_counted_by_storage_and_the_hosts_storages_beside_neither():
    result = on(held, 1001, 5000, world_size=2)
    for outer, inner, _ in result:
        assert inner.peak == inner.peak_on_gpu == 4004 and inner.allocator_peak == 4096 + 4096  # in pieces of 512
        assert outer.peak_on_gpu < 4004 + 100 and outer.peak >= 4004 + 20000
        assert inner.allocator_peak <= outer.allocator_peak < inner.allocator_peak + 3 * 512
    assert (result.memory.allocator_peak, result.memory.peak_on_gpu) == (outer.allocator_peak, outer.peak_on_gpu)
    assert result.memory.png().startswith(b"\x89PNG")


OPERATIONS = {
    "all_reduce": dist.all_reduce,
    "broadcast": lambda t: dist.broadcast(t, 0),
    "reduce": lambda t: dist.reduce(t, 0),
    "all_gather": lambda t: dist.all_gather([torch.empty_like(t) for _ in range(2)], t),
    "reduce_scatter": lambda t: dist.reduce_scatter_tensor(torch.empty_like(t[:2]), t),
    "all_to_all": lambda t: dist.all_to_all_single(torch.empty_like(t), t),
    "barrier": lambda t: dist.barrier(),
    "batch": lambda t: [work.wait() for work in dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, t, 1 - dist.get_rank()), dist.P2POp(dist.irecv, t.clone(), 1 - dist.get_rank())])],
}


def test_bytes_count_once_on_a_gpu_and_are_those_of_the_cpu():
    def counted():
        found = {}
        for name, operation in OPERATIONS.items():
            with record_communication() as log:
                operation(torch.arange(4.0))
            found[name] = log.calls(), log.message_bytes(), log.sent_bytes
        return found

    assert on(counted) == on(counted, mode="cpu")
