"""Amdahl, Gustafson and the time of a step with its communication."""

import math

import pytest

from course_lib import facts
from course_lib.costs.links import Link, hardware_link
from course_lib.costs.scaling import (
    amdahl,
    data_parallel_step,
    fit_amdahl,
    gustafson,
    ideal_on_cores,
    strong_efficiency,
    total_time,
    weak_efficiency,
)


def test_amdahl_never_exceeds_one_over_the_serial_share_and_gustafson_does():
    assert amdahl(0.9, 1) == gustafson(0.9, 1) == 1
    assert amdahl(0.9, 10**9) < 10 and math.isclose(amdahl(0.95, 8), 1 / (0.05 + 0.95 / 8))
    assert gustafson(0.9, 100) == pytest.approx(90.1)
    assert amdahl(1, 7) == pytest.approx(7)


def test_the_fit_finds_the_share_that_made_the_speed_ups_and_stays_a_share():
    counts = [1, 2, 4, 8]
    for P in (0.0, 0.5, 0.93, 1.0):
        assert fit_amdahl(counts, [amdahl(P, n) for n in counts]) == pytest.approx(P)
    assert fit_amdahl([2, 4], [2.2, 4.5]) == 1 and fit_amdahl([2, 4], [0.8, 0.5]) == 0


def test_a_step_is_its_share_of_the_work_and_an_all_reduce():
    link = Link(1e-5, 1e-9)
    assert total_time(8.0, 4, 0.5, 1e-9, 1e9) == 8 / 4 + 0.5 + 1
    assert total_time(8.0, 1, 0.5, 1e-9, 1e9) == data_parallel_step(8.0, 1, 1e9, link) == 8
    assert data_parallel_step(8.0, 4, 1e9, link) == pytest.approx(2 + 6e-5 + 1.5)


def test_efficiency_is_one_when_scaling_is_perfect():
    assert strong_efficiency(8, 2, 4) == weak_efficiency(8, 8) == 1
    assert strong_efficiency(8, 4, 4) == 0.5 and weak_efficiency(8, 10) == 0.8
    assert [ideal_on_cores(n, 2) for n in (1, 2, 4)] == [1, 2, 2]


def test_efficiency_is_a_matter_of_the_wire_and_of_the_number_of_devices():
    """The step of notebook 01: 30 ms on one device, 3.3 MB of gradients. No range holds for all."""
    efficiencies = [strong_efficiency(0.03, data_parallel_step(0.03, n, 3.3e6, hardware_link(wire)), n)
                    for n in (2, 4, 8, 16) for wire in ("NVLink 4 (H100)", "Ethernet 1G")]
    assert min(efficiencies) < 0.1 and max(efficiencies) > 0.99
    assert "from under 10 to over 99 %" in facts.claim("strong and weak efficiency").right
