"""Checkpoints and failures: the closed form's minimum, and Llama 3's reported interruptions."""

import pytest

from course_lib.costs.failures import best_interval, lost_share, mean_time_between_failures
from course_lib.facts import LLAMA3_INTERRUPTIONS


@pytest.mark.parametrize("C, R, M", [(30, 600, 10_000), (5, 60, 3600), (120, 1200, 100_000)])
def test_no_other_interval_loses_less(C, R, M):
    best = best_interval(C, M)
    least = lost_share(C, R, M)
    assert lost_share(C, R, M, best) == least
    assert all(lost_share(C, R, M, best * factor) > least for factor in (0.5, 0.9, 1.1, 2))


def test_twice_the_devices_fail_twice_as_often():
    assert mean_time_between_failures(50_000, 16_384) == 2 * mean_time_between_failures(50_000, 32_768)


def test_llama_3_was_interrupted_every_three_hours():
    devices, days = 16_384, 54
    hours = devices * days * 24 / LLAMA3_INTERRUPTIONS.value
    assert mean_time_between_failures(hours, devices) / 3600 == pytest.approx(3.09, abs=0.01)


def test_what_counts_nothing_is_refused():
    with pytest.raises(ValueError, match="checkpoint_s=0"):
        best_interval(0, 1000)
