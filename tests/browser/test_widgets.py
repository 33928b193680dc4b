"""The widgets of chapter 2 in a real JupyterLab, by keyboard alone."""

import pytest

from tests.browser.widget import Widget

pytestmark = pytest.mark.browser

CELLS = {"ring": "ring = RingAllReduce(num_ranks=4, step=0)\nring",
         "explorer": 'explorer = CollectiveExplorer("all_reduce", "naive", num_ranks=4, step=0)\nexplorer'}


@pytest.fixture
def open_widgets(run_cells):
    """Both widgets, new, in a notebook that has been run: {"ring": Widget, "explorer": Widget}."""

    def opened():
        notebook = run_cells("from course_lib.widgets import CollectiveExplorer, RingAllReduce", *CELLS.values())
        return {name: Widget(notebook, number) for number, name in enumerate(CELLS)}

    return opened


def test_the_ring_is_stepped_by_keyboard_and_slider_headline_and_picture_agree(open_widgets):
    ring = open_widgets()["ring"]
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
    assert ring.notebook.console_errors == []


def test_the_explorer_is_driven_by_keyboard_and_never_asks_for_ranks_that_do_not_fit(open_widgets):
    explorer = open_widgets()["explorer"]
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
    assert explorer.notebook.console_errors == []


def test_python_and_the_browser_set_the_same_parameters(open_widgets):
    ring = open_widgets()["ring"]
    ring.notebook.ask("ring.num_ranks, ring.step = 3, 2")
    ring.wait_for("n=3 step=2")
    assert ring.control("ranks").get_attribute("aria-valuetext") == "3"
    ring.press("step", "ArrowRight")
    ring.press("ranks", "ArrowRight")
    ring.wait_for("n=4 step=3")
    assert ring.notebook.ask("print(ring.num_ranks, ring.step)") == "4 3\n"
    assert ring.notebook.console_errors == []


def test_play_moves_to_the_last_step_and_stops_there_and_pause_leaves_a_whole_step(open_widgets):
    widgets = open_widgets()
    for name, first in (("ring", ""), ("explorer", "all_reduce naive ")):
        widget = widgets[name]
        widget.press("Play", "Space")
        widget.root.locator("svg[data-key$=' moving']:not([data-key$='step=1 moving'])").wait_for()
        widget.press("Pause", "Space")
        widget.wait_for_another(f"{first}n=4 step=1")  # a slow machine presses while a later step is drawn
        assert widget.key() in {f"{first}n=4 step={step}" for step in range(2, 6)}
        widget.control("Play").wait_for()
        widget.press("Play", "Space")
        widget.wait_for(f"{first}n=4 step=6")
        widget.control("Play").wait_for()
        assert widget.notebook.console_errors == []


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


def test_nothing_that_travels_around_the_ring_covers_a_rank_or_a_name(open_widgets):
    ring = open_widgets()["ring"]
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
