"""Stragglers against closed forms: the pace of the slowest, slack, staleness."""

import pytest

from course_lib.costs.scaling import SLOW_RANK, WAITS, WHO, simulate_stragglers

ALWAYS, RANDOM = WHO
NEVER_LATE = [("synchronous", 0), ("local", 0), ("local", 4), ("asynchronous", 0), ("asynchronous", 4),
              ("asynchronous", None)]


def starts(spans):
    """When each step of one rank begins: with its computing."""
    return [start for what, start, _ in spans if what.startswith("computes")]


@pytest.mark.parametrize("slack", [0, 1, 4, 8])
def test_averaging_after_some_steps_saves_averaging_but_not_the_wait_for_a_rank_that_is_always_slow(slack):
    for n, slowdown, sync_s in ((2, 1, 0.0), (4, 3, 0.25), (7, 10, 1.0), (4, 2.5, 0.0)):
        run, H = simulate_stragglers("local", slack, slowdown, num_ranks=n, sync_s=sync_s), slack + 1
        assert run.throughput() == pytest.approx(n * H / (H * slowdown + sync_s))
        assert run.waiting(SLOW_RANK) == 0
        assert run.waiting(0) == pytest.approx(H * (slowdown - 1) / (H * slowdown + sync_s))
        assert run.staleness() == (pytest.approx(slack / 2), slack)


@pytest.mark.parametrize("who", WHO)
def test_without_slack_all_schemes_are_synchronous(who):
    synchronous, local, bounded = (simulate_stragglers(scheme, 0, 3, who)
                                   for scheme in ("synchronous", "local", "asynchronous"))
    assert local == synchronous and bounded.staleness() == (0, 0)
    assert [starts(spans) for spans in bounded.spans] == [starts(spans) for spans in synchronous.spans]
    assert bounded.throughput() == pytest.approx(synchronous.throughput())
    for rank in range(4):
        assert bounded.waiting(rank) == pytest.approx(synchronous.waiting(rank), abs=0.01)


@pytest.mark.parametrize("who, throughput, rel", [(ALWAYS, 3 / 1.25 + 1 / 3.25, 0.01), (RANDOM, 4 / 1.75, 0.05)])
def test_without_a_bound_nobody_waits_and_every_rank_goes_at_its_own_pace(who, throughput, rel):
    run = simulate_stragglers("asynchronous", None, 3, who, sync_s=0.25)
    assert not any(what == WAITS for spans in run.spans for what, _, _ in spans)
    assert run.throughput() == pytest.approx(throughput, rel=rel)


@pytest.mark.parametrize("slack", [1, 2, 8, 32])
def test_a_bound_is_kept_and_with_a_rank_that_is_always_slow_only_delays_the_wait(slack):
    run = simulate_stragglers("asynchronous", slack, 3)
    assert run.staleness()[1] == slack
    assert run.throughput() == pytest.approx(4 / 3.25, rel=1e-2)
    slowest = [at for at, _ in run.steps[SLOW_RANK]]
    for number, begin in enumerate(starts(run.spans[0])):  # it begins its step `number`, from 0
        assert number - sum(at <= begin for at in slowest) <= slack


def test_more_slack_never_makes_the_slowest_later_and_helps_against_hiccups():
    ends = [simulate_stragglers("asynchronous", slack, 3, RANDOM).end() for slack in (0, 1, 2, 4, 8, 16, 32, None)]
    assert all(later <= earlier for earlier, later in zip(ends, ends[1:]))
    assert ends[3] < 0.6 * ends[0]
    in_step = simulate_stragglers("synchronous", 0, 3, RANDOM).throughput()
    assert simulate_stragglers("local", 8, 3, RANDOM).throughput() > 1.5 * in_step


def test_equally_fast_ranks_never_wait_and_spans_follow_one_another_without_gaps():
    for scheme, slack in NEVER_LATE:
        run = simulate_stragglers(scheme, slack, 1)
        assert not any(what == WAITS for spans in run.spans for what, _, _ in spans)
        per_round = slack + 1 if scheme == "local" else 1
        assert run.throughput() == pytest.approx(4 * per_round / (per_round + 0.25))
        for spans in (spans for who in WHO for spans in simulate_stragglers(scheme, slack, 3, who).spans):
            assert spans[0][1] == 0 and all(start < end for _, start, end in spans)
            assert all(a[2] == pytest.approx(b[1]) for a, b in zip(spans, spans[1:]))
