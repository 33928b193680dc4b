"""record_timeline: spans and communication calls of every rank on one clock, and what follows from them."""

import json
import pickle
import re
import threading
import time
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from course_lib.runtime import Timeline, context, launch, record_timeline, span
from course_lib.runtime.instruments.pending import GroupCall
from course_lib.runtime.instruments.pictures import span_colours
from course_lib.runtime.instruments.timeline import Clock
from course_lib.runtime.instruments.timeline_events import TimelineEvent, TimelineRecorder, longest_outside, transfers


def event(lane, start_s, end_s, name="x", rank=0, depth=0, **labels):
    return TimelineEvent(rank, lane, name, start_s, end_s, labels, depth=depth)


def call(name, start_s, end_s, rank=0, **labels):
    return event("communication", start_s, end_s, name, rank, **labels)


def wait(start_s, end_s, rank=0):
    return event("waiting", start_s, end_s, rank=rank)


HERE = Clock("here", 0.0, 0.0)


def timeline(*events, waits=(), ranks=(0,), clock=HERE):
    return Timeline(ranks, list(events), list(waits), clock)


# Spans

def test_spans_nest_keep_their_labels_and_are_seen_by_the_timelines_around_them_alone():
    with span("nobody listens"), record_timeline() as outer:
        with pytest.raises(RuntimeError, match="halfway"), record_timeline() as inner, span("step", n=3):
            with span("forward"):
                pass
            with span("backward"):
                raise RuntimeError("halfway")
    assert [(e.name, e.depth, e.lane, e.rank, e.labels) for e in inner.events] == [
        ("step", 0, "compute", 0, {"n": 3}), ("forward", 1, "compute", 0, {}), ("backward", 1, "compute", 0, {})]
    assert [e.name for e in outer.events] == [e.name for e in inner.events]
    step, *parts = inner.events
    times = [step.start_s, *(time_s for part in parts for time_s in (part.start_s, part.end_s)), step.end_s]
    assert times == sorted(times) and inner.duration_s == step.duration_s


# A device that works behind the host

class Behind:
    """A clock of whole seconds, whose device has come to `reached`."""

    now = reached = 0.0

    def mark(self, on_stream=True):
        self.now += 1
        return self.now

    def reader(self):
        return lambda mark, wait: mark if wait or mark <= self.reached else None


@pytest.mark.parametrize("waits_itself, fails, expected", [
    (True, False, [("compute", 1, 8, False), ("communication", 2, 5, False), ("waiting", 3, 4, False),
                   ("waiting", 6, 7, False)]),
    (False, False, [("compute", 1, 6, False), ("communication", 2, 7, True), ("waiting", 3, 4, False)]),
    (True, True, [("compute", 1, 9, False), ("communication", 2, 9, True), ("waiting", 3, 9, False)]),  # 9: now
])
def test_a_calls_end_on_a_device_is_waited_for_where_the_rank_has_waited_and_no_error_came(waits_itself, fails,
                                                                                           expected):
    recorder = TimelineRecorder(Behind())
    made = GroupCall(0, "all_reduce", None, (0, 1), [(torch.float32, (2,))], on_stream=True)
    recorder.begin_span("step", {})  # 1
    recorder.begin_call(made)  # 2
    recorder.end_wait(made, recorder.begin_wait(made))  # 3 to 4
    recorder.end_call(made)  # 5
    if waits_itself:
        recorder.end_wait(made, recorder.begin_wait(made))  # 6 to 7
    recorder.clock.reached = 3.0 if fails else 0.0  # after an error: what the device has come to
    found = [(e.lane, e.start_s, min(e.end_s, 9), e.labels.get("unfinished", False))
             for e in recorder.close(0, 0.0, wait=not fails)]
    assert found == expected


# What follows from events

def test_totals_count_time_covered_once_and_add_over_ranks():
    recorded = timeline(event("compute", 0, 4, "step"), event("compute", 1, 3, "forward", depth=1),
                        event("compute", 1, 2, "forward", rank=1), call("all_reduce", 3, 6), call("all_reduce", 5, 7),
                        ranks=(0, 1))
    assert recorded.total_s("forward") == 2 + 1 and recorded.total_s("forward", rank=0) == 2
    assert recorded.total_s(lane="compute") == 4 + 1
    assert recorded.total_s("all_reduce") == recorded.total_s(lane="communication") == 4
    assert recorded.total_s() == 7 + 1 and recorded.duration_s == 7 and timeline().duration_s == 0


def test_hidden_is_communication_during_a_span_but_not_inside_the_call():
    recorded = timeline(event("compute", 0, 10), call("x", 2, 6), call("x", 5, 8), call("x", 9, 12),
                        event("compute", 0, 20, rank=1), waits=[wait(7, 8), wait(9.5, 12)], ranks=(0, 1))
    assert recorded.hidden_s(0) == (6 - 2) + (7 - 6) + (9.5 - 9) and recorded.hidden_s(1) == 0
    assert recorded.waiting_s(0) == recorded.total_s(lane="waiting") == 3.5
    with pytest.raises(ValueError, match="rank 5 recorded no timeline"):
        recorded.hidden_s(5)


def test_words_go_into_the_longest_stretch_that_no_wait_covers():
    assert longest_outside(0, 10, [(1, 2), (3, 9)]) == (0, 1)
    assert longest_outside(0, 10, [(-5, 1), (2, 4)]) == (4, 10)
    assert longest_outside(2, 4, []) == (2, 4)
    start, end = longest_outside(2, 4, [(0, 9)])
    assert start == end


def test_bytes_of_a_collective_move_once_the_last_rank_has_called_it_and_those_of_a_message_once_both_have():
    world = {"group": (0, 1)}
    recorded = timeline(
        call("all_reduce", 1, 6, 0, **world), call("all_reduce", 4, 6, 1, **world),  # the first of each rank
        call("all_reduce", 7, 9, 0, **world), call("all_reduce", 7, 9, 1, **world),
        call("recv", 10, 14, 0, peer=1), call("send", 13, 14, 1, peer=0),
        call("recv", 20, 21, 1, peer=None),  # from any rank: it counts from its call on
        waits=[wait(2, 6), wait(7, 9), wait(10, 14)], ranks=(0, 1))
    assert transfers(recorded.events) == {0: [(4, 6), (7, 9), (13, 14)], 1: [(4, 6), (7, 9), (13, 14), (20, 21)]}
    assert recorded.waiting_s(0) == 10 and recorded.blocked_s(0) == 2 + 2 + 1


def test_a_timeline_says_how_its_average_rank_spends_the_time_and_a_readers_headline_stands_above_it(snapshot):
    world = {"group": (0, 1), "bytes": 0}
    recorded = timeline(event("compute", 0, 4), call("barrier", 4, 10, 0, **world), event("compute", 0, 8, rank=1),
                        call("barrier", 8, 10, 1, **world), ranks=(0, 1), waits=[wait(4, 10), wait(8, 10, rank=1)])
    held, broken = recorded.shows("Rank 0 computes", holds=True), recorded.shows("Rank 0 waits", holds=False, until_s=9)
    assert "computes 60%, is blocked while bytes move 20%, waits for others 20%" in recorded.alternative()
    assert "\n".join([recorded.alternative(), str(held), str(broken), broken.alternative()]) == snapshot
    assert len({recorded.png(), held.png(), broken.png()}) == 3


def test_ranks_that_share_cores_say_how_much_of_one_each_had(monkeypatch):
    ranks = [replace(timeline(event("compute", 0, 4, rank=rank), ranks=(rank,)), cpu_s={rank: 1.0 + rank})
             for rank in range(3)]
    shared = Timeline.merge([*ranks, replace(ranks[0], cpu_s={0: 2.0})])
    assert shared.cpu_s == {0: 3.0, 1: 2.0, 2: 3.0}, "two recordings of a rank are added up"
    monkeypatch.setattr(context, "count_cores", lambda: 2)
    assert shared.alternative().endswith("; 3 ranks on 2 cores: 2 s to 3 s of CPU each")
    assert "of CPU" not in shared.by_rank(0).alternative(), "one rank has a core of its own"
    monkeypatch.setattr(context, "count_cores", lambda: 3)
    assert "of CPU" not in shared.alternative()
    elsewhere = replace(ranks[1], clock=Clock("there", 0.0, 0.0))
    assert Timeline.merge([ranks[0], elsewhere]).cpu_s == {}, "these cores are not one machine's"


def test_a_rank_records_what_its_process_computes_and_not_how_long_it_sleeps():
    def cpu_of(rest):
        with record_timeline() as recorded:
            while not rest and recorded.clock.counter_s + 0.05 > time.perf_counter():
                pass
            threading.Event().wait(0.05 if rest else 0)
        return recorded.cpu_s[0]

    assert cpu_of(rest=True) < cpu_of(rest=False)


def test_ranks_of_one_host_are_aligned_by_its_counter_and_hosts_by_their_wall_clocks():
    # the wall clock of host a was set back by 50 s between its recordings; host b began 2 s after the first
    clocks = Clock("a", 100.0, 5000.0), Clock("a", 103.0, 4953.0), Clock("b", 7.0, 5002.0)
    parts = [timeline(event("compute", 1, 2, rank=rank), ranks=(rank,), clock=clock,
                      waits=[wait(2, 3, rank)] if rank == 2 else []) for rank, clock in enumerate(clocks)]
    merged = Timeline.merge(parts)
    assert [(e.rank, e.start_s, e.end_s) for e in merged.events] == [(0, 1, 2), (1, 4, 5), (2, 3, 4)]
    assert [(each.start_s, each.end_s) for each in merged.waits] == [(4, 5)]
    assert merged.ranks == (0, 1, 2) and Timeline.merge([merged]).events == merged.events


# Real ranks

def overlapping_step():
    rank = dist.get_rank()
    with record_timeline():
        with span("forward", micro_batch=rank):
            torch.ones(10).sum()
        with span("backward"):
            works = [dist.all_reduce(torch.ones(1000), async_op=True) for _ in range(3)]
        for work in works:
            work.wait()
        if rank == 0:
            dist.send(torch.ones(5), 1)
        if rank == 1:
            dist.recv(torch.ones(5), 0)
        dist.barrier()
        if rank == 3:
            unfinished = dist.isend(torch.ones(5), 2)
    if rank == 3:
        unfinished.wait()
    if rank == 2:
        dist.recv(torch.ones(5), 3)


@pytest.fixture(scope="module")
def recorded():
    return launch(overlapping_step, world_size=4).timeline


def test_every_call_of_every_rank_is_on_its_lane_and_a_collective_ends_on_none_before_all_have_begun(recorded):
    labels = []
    for rank, (message, late) in enumerate((("send", None), ("recv", None), (None, None), (None, "send"))):
        calls = [e for e in recorded.by_rank(rank).events if e.lane == "communication"]
        names = ["all_reduce"] * 3 + [message, "barrier", late]
        assert [each.name for each in calls] == [name for name in names if name]
        assert all(each.end_s >= each.start_s for each in calls)
        labels.append([each.labels for each in calls])
        assert 0 <= recorded.hidden_s(rank) <= recorded.total_s(lane="communication", rank=rank)
        assert 0 < recorded.waiting_s(rank) <= recorded.duration_s
    assert labels[0][0] == {"bytes": 4000, "group": (0, 1, 2, 3)} and labels[0][3] == {"bytes": 20, "peer": 1}
    assert labels[3][-1] == {"bytes": 20, "peer": 2, "unfinished": True}
    barriers = [e for e in recorded.events if e.name == "barrier"]
    assert len(barriers) == 4 and min(e.end_s for e in barriers) >= max(e.start_s for e in barriers)


def test_the_chrome_trace_names_ranks_and_lanes_and_never_overlaps_on_a_thread(recorded, tmp_path):
    recorded.save_chrome_trace(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = [(e["pid"], e["args"]["name"]) for e in trace if e["ph"] == "M" and e["name"] == "process_name"]
    assert names == [(rank, f"rank {rank}") for rank in range(4)]
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in trace if e["name"] == "thread_name"}
    assert {"compute", "waiting", "communication"} <= set(threads.values())
    complete = [e for e in trace if e["ph"] == "X"]
    assert len(complete) == len(recorded.events) + len(recorded.waits)
    for thread, lane in threads.items():
        mine = sorted((e["ts"], e["ts"] + e["dur"]) for e in complete if (e["pid"], e["tid"]) == thread)
        assert mine, lane
        assert all(end <= start + 1e-3 for (_, end), (start, _) in zip(mine, mine[1:]))  # microseconds
    forward = next(e for e in complete if e["name"] == "forward" and e["pid"] == 2)
    first = next(e for e in recorded.events if e.name == "forward" and e.rank == 2)
    assert forward["args"] == {"micro_batch": 2} and forward["ts"] == pytest.approx(first.start_s * 1e6)


def test_it_draws_itself_and_says_no_times_in_words(recorded):
    copy = pickle.loads(pickle.dumps(recorded))
    drawn, kept = copy._repr_mimebundle_()
    assert len(json.loads(kept["chrome_trace"])["traceEvents"]) > len(recorded.events)
    assert drawn["text/plain"] == repr(recorded) == (
        "Timeline of 4 ranks: 8 spans (4 forward, 4 backward); "
        "19 communication calls (12 all_reduce, 2 send, 4 barrier, 1 recv)")
    assert drawn["image/png"].startswith(b"\x89PNG") and not re.search(r"\d (ms|us|s)\b", drawn["text/plain"])
    assert re.search(r"of \d.* (ms|s|µs|us) the average rank computes", copy.alternative())  # for who cannot see it
    assert "record_timeline()" in repr(Timeline.merge([])) == Timeline.merge([]).alternative()
    assert set(timeline()._repr_mimebundle_()) == {"text/plain"}


def test_experts_have_one_colour_with_and_without_dispatch_and_no_two_names_share_one():
    alone, with_others = span_colours(["experts"]), span_colours(["dispatch", "experts", "combine"])
    assert alone["experts"] == with_others["experts"] and len(set(with_others.values())) == 3
