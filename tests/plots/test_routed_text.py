"""RoutedText draws each character with its expert, and names what an expert gets more of than others."""

import pytest

from course_lib.widgets import RoutedText
from tests.widgets.pictures import size_and_colours

TEXT = b"a1b2c3\n4 "
EXPERTS = [0, 1, 0, 1, 0, 1, 2, 1, 2]


def test_every_character_has_the_colour_of_its_expert():
    marks = {mark.key: mark for mark in RoutedText("letters here, digits there", TEXT, EXPERTS, 3).scene().marks}
    assert [marks[f"token {place}"].role for place in range(9)] == [f"rank {expert}" for expert in EXPERTS]
    assert "".join(marks[f"token {place} is"].text for place in range(9)) == "a1b2c3↵4␣"


def test_an_expert_likes_what_it_has_more_of_than_others_and_most_what_is_frequent():
    text = RoutedText("", b"aaab" b"aabb", [0, 0, 0, 0, 1, 1, 1, 1], 2)
    assert text.favourites(0) == ["a"] and text.favourites(1) == ["b"]
    assert [text.share(expert) for expert in range(2)] == [0.5, 0.5]


def test_it_says_what_it_shows_and_no_text():
    shown = RoutedText("Letters here, digits there", TEXT, EXPERTS, 3, holds=False)
    assert repr(shown) == "RoutedText: not seen here: Letters here, digits there (9 characters, 3 experts)"
    assert RoutedText("", TEXT, EXPERTS, 3, detail="a third").scene().detail == "a third"
    (width, height), colours = size_and_colours(shown.png())
    assert width > 900 and height > 200 and colours > 3


@pytest.mark.parametrize("experts, words", [([0, 1], "one for each token"), ([3] * 9, "expected 0 to 2")])
def test_what_is_no_routing_is_refused(experts, words):
    with pytest.raises(ValueError, match=words):
        RoutedText("", TEXT, experts, 3)
