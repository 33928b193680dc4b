"""Figures by rank: one panel each, the rank that stands out, and what cannot be drawn."""

import pytest

from course_lib.widgets import RankPanels
from tests.widgets.pictures import size_and_colours

LOSSES = [[5.0, 5.0, 5.0], [4.0, 9.0, 4.0], [3.0, 2.0, 5.0], [2.0, 2.0, 5.0], [9.0, 2.0, 5.0]]


def test_the_panels_are_one_png_and_one_stable_sentence():
    bundle = RankPanels("rank 2 reads other data", {"loss": LOSSES, "work (s)": LOSSES})._repr_mimebundle_()
    assert bundle["text/plain"] == "RankPanels: rank 2 reads other data (loss, work)"
    (width, _), colours = size_and_colours(bundle["image/png"])
    assert width > 900 and colours > 6


def test_a_headline_that_the_figures_contradict_says_so():
    said = [RankPanels("it falls", {"loss": LOSSES}, holds=holds).finding() for holds in (True, False)]
    assert said == ["RankPanels: it falls (loss)", "RankPanels: not seen here: it falls (loss)"]


def test_of_a_run_that_goes_on_they_say_how_many_steps_they_are_of():
    bundle = RankPanels.so_far({"loss": LOSSES})._repr_mimebundle_()
    assert bundle["text/plain"] == "RankPanels after 5 steps (loss)"
    assert bundle["image/png"] != RankPanels("it falls", {"loss": LOSSES})._repr_mimebundle_()["image/png"]


def test_the_rank_that_stands_out_does_so_in_most_of_the_later_steps():
    assert RankPanels("", {"loss": LOSSES}).standing_out("loss") == 2


@pytest.mark.parametrize("figures", [{}, {"loss": []}, {"loss": [[1.0], [1.0, 2.0]]},
                                     {"a": [[1.0]], "b": [[1.0, 2.0]]}])
def test_figures_of_different_steps_or_ranks_are_refused(figures):
    with pytest.raises(ValueError, match="expected the same of each"):
        RankPanels("nothing", figures)
