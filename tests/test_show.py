"""What a notebook shows of a module is the module."""

import html
import inspect
import re

import pytest

from course_lib import collectives, show
from course_lib.collectives import ring
from course_lib.collectives.ring import all_gather, reduce_scatter
from course_lib.groups.membership import Member


def as_text(listing):
    """What a browser would show of its HTML."""
    return html.unescape(re.sub(r"<[^>]*>", "", listing._repr_html_()))


def test_the_live_source_is_shown_with_its_file_and_not_a_character_is_lost_in_html():
    listing = show.show(reduce_scatter)
    assert listing.heading == "course_lib/collectives/ring.py"
    assert listing.code == inspect.getsource(reduce_scatter).rstrip()
    assert as_text(listing) == listing.heading + listing.code
    assert "&lt;" in show.colour_code("a < b") and "<b" not in show.colour_code("a <b")


def test_functions_stand_below_each_other_methods_without_indentation_and_modules_with_their_file():
    code = show.show(reduce_scatter, all_gather).code
    assert code.index("def reduce_scatter") < code.index("def all_gather")
    assert show.show(Member.send).code.startswith("def send(self")
    assert show.show(ring).heading == "course_lib/collectives/ring.py"
    assert show.show(collectives).heading == "course_lib/collectives/__init__.py"


def test_a_difference_marks_what_went_and_what_came():
    def before():
        return 1

    def after():
        return 2

    difference = show.show_diff(before, after)
    assert "-     return 1" in difference.lines and "+     return 2" in difference.lines
    assert "before -> " in difference.heading
    assert show.ADDED in difference._repr_html_() and show.REMOVED in difference._repr_html_()


@pytest.mark.parametrize("thing", [len, 3, "text", None])
def test_what_has_no_source_is_refused_by_name(thing):
    with pytest.raises(TypeError, match="expected a function, class or module written in Python"):
        show.show(thing)
