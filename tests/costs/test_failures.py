"""How often to save, against a simulation of runs that fail and against published numbers."""

import math
import random

import pytest

from course_lib import facts
from course_lib.costs import money

DAY, HOUR, MINUTE = 86400.0, 3600.0, 60.0


def simulated_seconds(work, tau, delta, M, R, rng):
    """One run, failure by failure: what a segment and its save have not finished when one comes has to be done again.
    """
    clock, done, fails_at = 0.0, 0.0, rng.expovariate(1 / M)
    while done < work:
        if clock + tau + delta <= fails_at:
            clock, done = clock + tau + delta, done + tau
            continue
        clock = fails_at
        fails_at = clock + rng.expovariate(1 / M)
        while clock + R > fails_at:  # it fails while it restarts
            clock, fails_at = fails_at, fails_at + rng.expovariate(1 / M)
        clock += R
    return clock


@pytest.mark.parametrize(("M", "delta", "R"), [(6 * HOUR, 5 * MINUTE, 10 * MINUTE), (HOUR, 5 * MINUTE, 20 * MINUTE)])
def test_the_expected_time_is_what_simulated_runs_take(M, delta, R):
    rng, tau = random.Random(0), 30 * MINUTE
    mean = sum(simulated_seconds(200 * HOUR, tau, delta, M, R, rng) for _ in range(400)) / 400
    assert money.expected_seconds(200 * HOUR, tau, delta, M, R) == pytest.approx(mean, rel=0.02)


@pytest.mark.parametrize("delta", [1.0, 60.0, 600.0, 3600.0])
def test_no_interval_loses_less_than_dalys(delta):
    M, R = 3 * HOUR, 10 * MINUTE
    tau = money.daly_interval(delta, M)
    best = min(money.expected_loss(tau * factor, delta, M, R) for factor in (0.5, 0.8, 0.9, 1, 1.1, 1.25, 2))
    assert money.expected_loss(tau, delta, M, R) <= best + 1e-4
    assert money.expected_loss(money.young_interval(delta, M), delta, M, R) >= best


@pytest.mark.parametrize(("M", "minutes"), [(24 * HOUR, 117), (6 * HOUR, 57), (15 * MINUTE, 9.1)])
def test_dalys_interval_is_the_one_that_his_paper_prints(M, minutes):
    """His figures 3 to 5, of a delta of 5 minutes."""
    assert money.daly_interval(5 * MINUTE, M) / MINUTE == pytest.approx(minutes, abs=0.6)


def test_goodput_is_to_first_order_one_minus_saving_doing_again_and_restarting():
    delta, M, R = 42.0, 12 * HOUR, 10 * MINUTE
    tau = money.young_interval(delta, M)
    assert delta / tau == pytest.approx(tau / 2 / M), "Young spends as much on saving as on doing again"
    by_hand = delta / tau + (tau / 2 + R) / M
    assert money.first_order_loss(tau, delta, M, R) == pytest.approx(by_hand, rel=1e-12)
    assert money.goodput(tau, delta, M, R) == pytest.approx(1 - by_hand, abs=3e-3)
    assert money.goodput(tau, delta, M) - money.goodput(tau, delta, M, R) == pytest.approx(R / M, rel=0.1)


def test_llama_3_failed_every_three_hours_a_small_cluster_every_three_weeks_and_gpus_are_64_percent_of_the_causes():
    over_s, gpus, total = facts.LLAMA_3_SNAPSHOT.value * DAY, int(facts.LLAMA_3_GPUS.value), 419
    M = money.seconds_between_failures(facts.LLAMA_3_UNEXPECTED.value, over_s, gpus, gpus)
    assert M / HOUR == pytest.approx(3.09, abs=0.01)
    assert money.seconds_between_failures(total, over_s, gpus, 100) / DAY == pytest.approx(21.1, abs=0.1)
    assert money.chance_of_no_failure(M, M) == pytest.approx(1 / math.e)
    counts = {cause: fact.value for cause, fact in facts.LLAMA_3_CAUSES.items()}
    gpu = sum(count for cause, count in counts.items() if cause.startswith("GPU"))
    assert sum(counts.values()) == total == facts.LLAMA_3_UNEXPECTED.value
    shares = [f"{count / total:.1%}" for count in (counts["GPU: faulty, NVLink too"], gpu, 126)]
    assert shares == ["35.3%", "64.0%", "30.1%"]
    assert all(share in facts.claim("faulty GPUs 30.1 %").right for share in ("35.3 %", "64.0 %"))
