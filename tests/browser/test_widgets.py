"""The widgets of chapter 2, which play: by keyboard alone."""

import pytest

from course_lib.widgets import CollectiveExplorer, RingAllReduce
from tests.browser.static_page import StaticPage

# Which chunks and names of the ring's picture lie on something, by their boxes on the screen; sides may touch.
COVERED = """(picture) => {
    const boxes = (selector) => [...picture.querySelectorAll(selector)].map((node) => node.getBoundingClientRect());
    const overlap = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
    const [ranks, chunks, names] = ["[class^=role-buffer]", "rect[data-key^=message]", "text[data-key^=message]"]
        .map(boxes);
    const pairs = [...chunks.flatMap((a) => [...ranks, ...names].map((b) => [a, b])),
        ...names.flatMap((a) => ranks.map((b) => [a, b]))];
    return [chunks.length, names.length, pairs.filter(([a, b]) => overlap(a, b)).length];
}"""


@pytest.fixture
def shown(chromium):
    """Both widgets, new, on a page: {"ring": Widget, "explorer": Widget}."""
    page = StaticPage(chromium, {"ring": RingAllReduce(num_ranks=4, step=0),
                                 "explorer": CollectiveExplorer("all_reduce", "naive", num_ranks=4, step=0)})
    yield page.shown
    assert page.errors == []
    page.context.close()


def test_the_explorer_is_driven_by_keyboard_and_never_asks_for_ranks_that_do_not_fit(shown):
    explorer = shown["explorer"]
    explorer.wait_for("all_reduce naive n=4 step=0")
    explorer.press("step", "End")
    explorer.wait_for("all_reduce naive n=4 step=6")
    assert explorer.headline() == "In all, rank 0 sends 3.0 × the buffer while the others send 1.0 ×"
    for chosen, key in (("", "naive n=5 step=6"), ("all-reduce, hier", "hierarchical n=4 step=4"),
                        ("", "hierarchical n=6 step=4")):
        if chosen:
            explorer.type("collective", chosen)
        else:
            explorer.press("ranks", "ArrowRight")
        explorer.wait_for(f"all_reduce {key}")
    explorer.type("collective", "all-to")
    explorer.wait_for("all_to_all pairwise n=6 step=4")
    assert "received from rank" in explorer.texts()


def test_play_moves_to_the_last_step_and_stops_there_and_pause_leaves_a_whole_step(shown):
    for name, first in (("ring", ""), ("explorer", "all_reduce naive ")):
        widget = shown[name]
        widget.press("Play", "Space")
        widget.root.locator("svg[data-key$=' moving']:not([data-key$='step=1 moving'])").wait_for()
        widget.press("Pause", "Space")
        widget.wait_for_another(f"{first}n=4 step=1")  # a slow machine presses while a later step is drawn
        assert widget.key() in {f"{first}n=4 step={step}" for step in range(2, 6)}
        widget.control("Play").wait_for()
        widget.press("Play", "Space")
        widget.wait_for(f"{first}n=4 step=6")
        widget.control("Play").wait_for()


@pytest.mark.ci
def test_nothing_that_travels_around_the_ring_covers_a_rank_or_a_name(shown):
    ring = shown["ring"]
    for width in (700, 1100):
        ring.page.set_viewport_size({"width": width, "height": 2400})
        ring.press("ranks", "Home")
        for num_ranks in range(2, 9):
            ring.wait_for(f"n={num_ranks} step=0")
            ring.press("Play", "Space")
            ring.root.locator(f"svg[data-key='n={num_ranks} step=1 moving']").wait_for()
            while ring.root.locator("svg").get_attribute("data-key").endswith("step=1 moving"):
                assert ring.root.locator("svg").evaluate(COVERED) == [num_ranks, num_ranks, 0]
            ring.press("Back to step 0", "Enter")
            ring.press("ranks", "ArrowRight")
