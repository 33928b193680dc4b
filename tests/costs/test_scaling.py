"""Amdahl, Gustafson and the time of a step with its communication."""


import pytest

from course_lib import facts
from course_lib.costs.flops import matmul_seconds, pass_seconds
from course_lib.costs.links import Link, hardware_link
from course_lib.costs.scaling import (
    amdahl,
    data_parallel_step,
    fit_amdahl,
    gustafson,
    strong_efficiency,
    weak_efficiency,
)

LINK = Link(1e-5, 1e-9)


def test_the_fit_finds_the_share_that_made_the_speed_ups_and_stays_a_share():
    counts = [1, 2, 4, 8]
    for P in (0.0, 0.5, 0.93, 1.0):
        assert fit_amdahl(counts, [amdahl(P, n) for n in counts]) == pytest.approx(P)
    assert fit_amdahl([2, 4], [2.2, 4.5]) == 1 and fit_amdahl([2, 4], [0.8, 0.5]) == 0


BY_HAND = [  # found, expected
    (amdahl(0.9, 1), 1), (amdahl(0.95, 8), 1 / (0.05 + 0.95 / 8)), (amdahl(1, 7), 7), (amdahl(0.9, 10**9), 10),
    (gustafson(0.9, 1), 1), (gustafson(0.9, 100), 90.1),
    (data_parallel_step(8.0, 1, 1e9, LINK), 8), (data_parallel_step(8.0, 4, 1e9, LINK), 2 + 6e-5 + 1.5),
    (strong_efficiency(8, 2, 4), 1), (strong_efficiency(8, 4, 4), 0.5), (weak_efficiency(8, 8), 1),
    (weak_efficiency(8, 10), 0.8),
    (matmul_seconds(2, 3, 4, 10.0, 5.0, 2, 3), 3 * (48 / 10 + 2 * (6 + 12 + 8) / 5)), (pass_seconds(8, 4, 3), 6)]


def test_laws_steps_and_efficiencies_are_those_of_counting_by_hand():
    assert [found for found, _ in BY_HAND] == pytest.approx([expected for _, expected in BY_HAND])


def test_efficiency_is_a_matter_of_the_wire_and_of_the_number_of_devices():
    """The step of notebook 01: 30 ms on one device, 3.3 MB of gradients. No range holds for all."""
    efficiencies = [strong_efficiency(0.03, data_parallel_step(0.03, n, 3.3e6, hardware_link(wire)), n)
                    for n in (2, 4, 8, 16) for wire in ("NVLink 4 (H100)", "Ethernet 1G")]
    assert min(efficiencies) < 0.1 and max(efficiencies) > 0.99
    assert "from under 10 to over 99 %" in facts.claim("strong and weak efficiency").right
