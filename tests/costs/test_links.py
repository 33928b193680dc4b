"""fit_link finds alpha and beta again; what collectives cost by it, and plans and ranks say so: tests/collectives."""

import numpy as np
import pytest

from course_lib.costs.links import Link, fit_link, hardware_link


@pytest.mark.parametrize("noise, rel", [(0.0, 1e-6), (0.1, 0.1)])  # of long messages, beside the latency of short ones
def test_fit_link_finds_the_link_that_made_the_times(noise, rel):
    sizes = np.array([2.0**k for k in range(10, 27)])
    link = fit_link(sizes, (2e-5 + 3e-10 * sizes) * np.random.default_rng(0).uniform(1 - noise, 1 + noise, len(sizes)))
    assert (link.alpha_s, link.beta_s_per_byte) == (pytest.approx(2e-5, rel=rel), pytest.approx(3e-10, rel=rel))


@pytest.mark.parametrize("sizes, times, alone", [
    ([100, 200], [1.0, 3.0], "beta_s_per_byte"),  # a line through them meets the axis below zero
    ([100, 200], [3.0, 1.0], "alpha_s"),  # longer messages that take less time
])
def test_a_link_never_has_a_negative_constant(sizes, times, alone):
    link = fit_link(sizes, times)
    assert {name for name in ("alpha_s", "beta_s_per_byte") if getattr(link, name) > 0} == {alone}


def test_the_link_of_a_wire_is_nccls_alpha_and_the_data_sheets_beta():
    assert hardware_link("InfiniBand HDR") == Link(14e-6, 1 / 25e9)
    assert hardware_link("NVLink 3 (A100)").alpha_s == pytest.approx(3.4e-6)
    assert hardware_link("Ethernet 10G").alpha_s == hardware_link("Ethernet 1G").alpha_s > 3 * 14e-6  # TCP's own
