"""What a notebook shows of a module is the module."""

import html
import inspect
import re

import pytest

from course_lib import show
from course_lib.collectives.ring import reduce_scatter


def as_text(listing):
    """What a browser would show of its HTML."""
    return html.unescape(re.sub(r"<[^>]*>", "", listing._repr_html_()))


def test_the_live_source_is_shown_with_its_file_and_not_a_character_is_lost_in_html():
    listing = show.show(reduce_scatter)
    assert listing.heading == "course_lib/collectives/ring.py"
    assert listing.code == inspect.getsource(reduce_scatter).rstrip()
    assert as_text(listing) == listing.heading + listing.code
    assert "&lt;" in show.colour_code("a < b") and "<b" not in show.colour_code("a <b")


@pytest.mark.parametrize("thing", [len, 3, "text", None])
def test_what_has_no_source_is_refused_by_name(thing):
    with pytest.raises(TypeError, match="expected a function, class or module written in Python"):
        show.show(thing)
