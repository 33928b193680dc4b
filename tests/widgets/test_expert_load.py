"""ExpertLoad's caricature grows and shrinks as its closed forms say."""

import pytest

from course_lib.pictures.figures import to_png
from course_lib.widgets import ExpertLoad
from course_lib.widgets.base import BadParameter
from course_lib.widgets.expert_load import BALANCING, EXPERTS, GAINS, START, STEPS, STRENGTHS, run
from tests.widgets.pictures import size_and_colours

ALMOST_EVEN = (1e-6, -1e-6, *(0.0,) * (EXPERTS - 2))


def growth(balancing, strength, gain):
    """By how much a tiny difference between two experts' shares grows in a step."""
    shares = run(balancing, strength, gain, ALMOST_EVEN).shares
    differences = [of_step[0] - of_step[1] for of_step in shares]
    return differences[1] / differences[0] - 1


@pytest.mark.parametrize("gain", GAINS)
@pytest.mark.parametrize("strength", STRENGTHS)
def test_near_even_shares_a_difference_grows_by_gain_less_strength_over_the_experts(gain, strength):
    assert growth("none", strength, gain) == pytest.approx(gain / EXPERTS, abs=1e-5)
    assert growth("auxiliary loss", strength, gain) == pytest.approx((gain - strength) / EXPERTS, abs=1e-5)


def test_even_shares_stay_even_and_shares_always_add_up():
    for balancing in BALANCING:
        even = run(balancing, 0.1, 0.2, (0.0,) * EXPERTS).shares[-1]
        assert even == pytest.approx((1 / EXPERTS,) * EXPERTS)
        assert all(sum(of_step) == pytest.approx(1) for of_step in run(balancing, 0.1, 0.2).shares)


def test_unbalanced_routers_collapse_onto_the_expert_with_the_head_start():
    collapsed = run("none", 0.1, 0.2)
    assert collapsed.imbalance > 7.9 and collapsed.starved == EXPERTS - 1
    assert max(range(EXPERTS), key=collapsed.shares[-1].__getitem__) == max(range(EXPERTS), key=START.__getitem__)


def test_an_auxiliary_loss_weaker_than_the_gain_only_delays_and_a_bias_holds_at_any_strength_shown():
    for gain in GAINS[1:]:
        for strength in STRENGTHS:
            held = run("auxiliary loss", strength, gain)
            assert (held.imbalance < 1.15) == (strength >= gain)
            assert run("bias", strength, gain).imbalance < 1.3


def test_the_headline_is_the_finding_and_there_is_a_share_for_every_step():
    assert repr(ExpertLoad()) == (
        "ExpertLoad, no balancing, strength 0.1, gain 0.2: The busiest expert ends with 8.00 times the mean; 7 experts "
        "starved; near even shares a difference grows by 2.50% per step: gain/8")
    assert len(run("bias", 0.1, 0.2).shares) == STEPS + 1


def test_the_picture_has_every_colour_and_what_cannot_be_is_refused():
    (width, height), colours = size_and_colours(to_png(ExpertLoad("auxiliary loss", 0.2, 0.2).picture()))
    assert width > 900 and height > 400 and colours > 8
    for wrong in ({"balancing": "luck"}, {"strength": 0.5}, {"gain": 1}):
        with pytest.raises(BadParameter):
            ExpertLoad(**wrong)
