"""The widgets without a browser: what they say, what they send to one, what they refuse, and their pictures."""

import json

import pytest
from matplotlib.figure import Figure

from course_lib.collectives.steps import MESSAGES
from course_lib.pictures.figures import to_png
from course_lib.widgets import CollectiveExplorer, Explorable, RingAllReduce, TokenDispatch
from course_lib.widgets.base import BadParameter, WholeNumber
from tests.widgets.pictures import size_and_colours


def test_a_widget_shows_as_view_picture_and_sentence():
    data, _ = RingAllReduce(num_ranks=4, step=3)._repr_mimebundle_()
    assert set(data) == {"text/plain", "image/png", "application/vnd.jupyter.widget-view+json"}
    assert data["text/plain"].startswith("RingAllReduce, 4 ranks: step 3 of 6: ")


@pytest.mark.parametrize("num_ranks", [2, 5, 8])
def test_the_rings_picture_has_every_ranks_colour(num_ranks):
    for step in (0, 1, 2 * num_ranks - 2):
        (width, height), colours = size_and_colours(to_png(RingAllReduce(num_ranks=num_ranks, step=step).picture()))
        assert width > 900 and height > 400 and colours > num_ranks + 2


@pytest.mark.parametrize("op, algorithm", MESSAGES)
def test_every_collective_has_a_picture_and_small_frames_that_json_can_hold(op, algorithm):
    for num_ranks in (2, 8) if algorithm == "hierarchical" else (2, 3, 8):
        shown = CollectiveExplorer(op, algorithm, num_ranks)
        frames = json.loads(text := json.dumps(shown.frames))
        assert len(frames["states"]) == len(frames["texts"]) == len(frames["sent"]) == frames["num_steps"] + 1
        assert all(len(cells) == len(frames["columns"]) for state in frames["states"] for cells in state)
        assert len(text) < 50_000  # characters, once for each change of a parameter
    (_, height), colours = size_and_colours(to_png(shown.picture()))
    assert height > 200 and colours > 8


def test_frames_follow_the_parameters_and_a_step_beyond_the_last_becomes_the_last():
    ring = RingAllReduce(num_ranks=8, step=14)
    ring.num_ranks = 3
    assert (ring.frames["num_ranks"], ring.frames["num_steps"], ring.step) == (3, 4, 4)
    explorer = CollectiveExplorer("all_reduce", "naive", 4, step=6)
    with explorer.hold_trait_notifications():
        explorer.op, explorer.algorithm = "broadcast", "tree"
    assert (explorer.frames["num_steps"], explorer.step) == (2, 2)


def test_a_step_from_the_browser_that_new_parameters_do_not_have_becomes_the_last():
    ring = RingAllReduce(num_ranks=8, step=14)
    ring.set_state({"step": 12, "num_ranks": 2})
    assert (ring.num_ranks, ring.step) == (2, 2)
    ring.set_state({"step": 14})
    assert ring.step == 2
    with pytest.raises(BadParameter, match="step=-1"):
        ring.set_state({"step": -1})


@pytest.mark.parametrize("make, message", [
    (lambda: RingAllReduce(num_ranks=9), "num_ranks=9: expected a whole number from 2 to 8"),
    (lambda: RingAllReduce(num_ranks=True), "num_ranks=True: expected a whole number"),
    (lambda: RingAllReduce(num_ranks="4"), "num_ranks='4': expected a whole number"),
    (lambda: RingAllReduce(num_ranks=3, step=5), "step=5: expected a whole number from 0 to 4"),
    (lambda: RingAllReduce(ranks=3), "RingAllReduce has no parameter ranks: expected num_ranks or step"),
    (lambda: CollectiveExplorer("all_reduce", "fast"), "no plan for op='all_reduce' with algorithm='fast'"),
    (lambda: CollectiveExplorer("shuffle"), "no plan for op='shuffle'"),
    (lambda: CollectiveExplorer(["gather"]), "no plan for op="),
    (lambda: CollectiveExplorer(algorithm="hierarchical", num_ranks=5), "num_ranks=5: expected a multiple of 2"),
])
def test_parameters_that_cannot_be_are_refused_with_what_was_expected(make, message):
    with pytest.raises(ValueError) as raised:
        make()
    assert message in str(raised.value)


def test_a_refused_change_leaves_the_widget_as_it_was():
    explorer = CollectiveExplorer("all_reduce", "hierarchical", 4)
    before = repr(explorer), explorer.frames
    for name, value in (("num_ranks", 5), ("num_ranks", 40), ("op", "gather"), ("algorithm", "fast"), ("step", 99)):
        with pytest.raises(ValueError):
            setattr(explorer, name, value)
    assert (repr(explorer), explorer.frames) == before


def test_a_new_widget_is_two_files_and_three_methods(tmp_path):
    script = tmp_path / "doubler.js"
    script.write_text("export default { render() {} };")

    class Doubler(Explorable, script=script):
        num = WholeNumber(1, 1, 9).tag(sync=True)
        controls = ("num",)

        def compute(self):
            return {"twice": 2 * self.num}

        def sentence(self):
            return f"Doubler: twice {self.num} is {2 * self.num}"

        def picture(self):
            return Figure()

    doubler = Doubler(num=3)
    doubler.num = 4
    assert (doubler.frames, repr(doubler)) == ({"twice": 8}, "Doubler: twice 4 is 8")
    assert "function slider" in doubler._esm and doubler._esm.endswith("render() {} };")


def test_a_number_from_a_browser_is_the_choice_that_it_equals():
    assert repr(TokenDispatch(capacity_factor=1).capacity_factor) == "1.0"
