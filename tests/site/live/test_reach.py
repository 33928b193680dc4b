"""Static pages for everybody: axe-core, keyboard, narrow screens, both themes; as `make every-page` looks."""

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.ci]


@pytest.mark.sweep("name", few=["some", "recorded", "planner"], all=["all", "recorded", "planner"],
                   words="2 widgets of all on a static page")
def test_no_error_nothing_serious_nothing_wider_than_a_telephone_and_every_control_does_what_python_says(look, name):
    look.at(f"pages/{name}.html")
    assert "\n".join(look.faults) == ""
    assert (look.counts["moves"] > 5) == (name in ("all", "some"))


def test_each_fault_is_found(look):
    look.at("pages/faulty.html")
    assert {fault.split(": ")[1] for fault in look.faults} == {
        "axe light", "axe dark", "wider than 360 px", "console errors", "differ from Python"}
