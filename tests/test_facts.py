"""Every published number says where it is from."""

import pytest

from course_lib.facts import LINKS, MEASURED_ALL_REDUCE, Fact, interconnect


def test_a_number_without_source_unit_or_date_is_refused():
    for missing in ({"source": ""}, {"unit": ""}, {"date": "recently"}, {"value": float("nan")}):
        with pytest.raises(ValueError, match=next(iter(missing))):
            Fact(**({"value": 1.0, "unit": "GB/s", "source": "a paper", "date": "2020"} | missing))


def test_every_link_has_a_name_of_its_own_a_note_and_a_kind():
    assert len({link.name for link in LINKS}) == len(LINKS)
    assert {link.kind for link in LINKS} == {"inside a node", "between nodes", "torus"}
    assert all(link.note and link.one_way.unit == "GB/s" and link.one_way.value > 0 for link in LINKS)


def test_a_link_counts_bytes_in_one_direction():
    assert interconnect("NVLink 3 (A100)").one_way_bytes_per_s == 600e9 / 2
    assert interconnect("InfiniBand HDR").one_way_bytes_per_s == 200e9 / 8
    assert interconnect("InfiniBand QDR").one_way_bytes_per_s == 40e9 / 8 * 8 / 10
    with pytest.raises(ValueError, match="expected one of NVLink 2"):
        interconnect("NVLink 30")


def test_no_measured_all_reduce_beats_the_link_it_runs_on_except_where_switches_add():
    """NVSwitch of Hopper and later adds in the switch (NVLS), so that less than 2(n-1)/n M has to be sent."""
    a100 = next(measured for measured in MEASURED_ALL_REDUCE if measured.device == "A100")
    assert max(fact.value for fact in a100.bus_bandwidth.values()) < interconnect("NVLink 3 (A100)").one_way.value


def test_longer_messages_are_never_slower():
    for measured in MEASURED_ALL_REDUCE:
        sizes = sorted(measured.bus_bandwidth)
        rates = [measured.bus_bandwidth[size].value for size in sizes]
        assert rates == sorted(rates)
