"""The widgets of chapter 2, which play: by keyboard alone."""

import pytest

from course_lib.widgets import CollectiveExplorer, RingAllReduce
from tests.browser.static_page import StaticPage


@pytest.fixture
def shown(chromium):
    """Both widgets, new, on a page: {"ring": Widget, "explorer": Widget}."""
    page = StaticPage(chromium, {"ring": RingAllReduce(num_ranks=4, step=0),
                                 "explorer": CollectiveExplorer("all_reduce", "naive", num_ranks=4, step=0)})
    yield page.shown
    assert page.errors == []
    page.context.close()


def test_the_ring_is_stepped_by_keyboard_and_slider_headline_and_picture_agree(shown):
    ring = shown["ring"]
    ring.wait_for("n=4 step=0")
    for step in range(1, 7):
        ring.press("step", "ArrowRight")
        ring.wait_for(f"n=4 step={step}")
        assert ring.headline().startswith(f"Step {step} of 6: ")
        assert ring.control("step").get_attribute("aria-valuetext") == f"{step} of 6"
        assert f"each rank has sent {step / 4:g}" in " ".join(ring.texts()).replace(".0 ×", " ×")
        assert sum(text.startswith("chunk ") for text in ring.texts()) == 4  # each link says which chunk it carries
    ring.press("ranks", "End")
    ring.wait_for("n=8 step=6")
    ring.press("Back to step 0", "Enter")
    ring.wait_for("n=8 step=0")


def test_the_explorer_is_driven_by_keyboard_and_never_asks_for_ranks_that_do_not_fit(shown):
    explorer = shown["explorer"]
    explorer.wait_for("all_reduce naive n=4 step=0")
    explorer.press("step", "End")
    explorer.wait_for("all_reduce naive n=4 step=6")
    assert explorer.headline() == "In all, rank 0 sends 3.0 × the buffer while the others send 1.0 ×"
    explorer.press("ranks", "ArrowRight")
    explorer.wait_for("all_reduce naive n=5 step=6")
    explorer.control("collective").focus()
    explorer.page.keyboard.type("all-reduce, hier")
    explorer.wait_for("all_reduce hierarchical n=4 step=4")
    explorer.press("ranks", "ArrowRight")
    explorer.wait_for("all_reduce hierarchical n=6 step=4")
    explorer.control("collective").focus()
    explorer.page.keyboard.type("all-to")
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


def boxes_of(ring):
    """Bounding boxes on the screen of the ranks' boxes, the travelling chunks and all words of the picture."""
    return ring.root.locator("svg").evaluate("""(picture) => {
        const boxes = (selector) => [...picture.querySelectorAll(selector)].map((node) => {
            const { left, right, top, bottom } = node.getBoundingClientRect();
            return [left, right, top, bottom];
        });
        return { ranks: boxes(".box"), chunks: boxes(".token"), names: boxes(".link-name") };
    }""")


def overlap(a, b):
    return a[0] < b[1] and b[0] < a[1] and a[2] < b[3] and b[2] < a[3]


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
                require_clear(boxes_of(ring), num_ranks)
            ring.press("Back to step 0", "Enter")
            ring.press("ranks", "ArrowRight")


def require_clear(seen, num_ranks):
    """Sides touch where a chunk arrives, but nothing lies on anything."""
    assert len(seen["chunks"]) == len(seen["names"]) == num_ranks
    for chunk in seen["chunks"]:
        assert not any(overlap(chunk, other) for other in seen["ranks"] + seen["names"]), (num_ranks, seen)
    assert not any(overlap(name, rank) for name in seen["names"] for rank in seen["ranks"]), (num_ranks, seen)
