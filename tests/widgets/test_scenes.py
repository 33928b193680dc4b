"""Scenes are pure, plain JSON, and have room for all their words; what a widget says, refuses and shows as a PNG.

Whether a mark stands for its number: test_marks.py.
"""

import inspect
import json
from dataclasses import FrozenInstanceError

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.lines import Line2D
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.text import Text

from course_lib import widgets
from course_lib.collectives.steps import MESSAGES
from course_lib.pictures.painter import ALIGNED, paint, to_png
from course_lib.pictures.palette import BLUE, ROLES
from course_lib.pictures.scene import plain_mark, width_of
from course_lib.widgets.activation_memory import CORE, SPLIT, WHOLE
from course_lib.widgets.base import BadParameter, SteppedExplorable
from tests.widgets.marks import marks_of_film
from tests.widgets.pictures import scene_with, size_and_colours, values_of
from tests.widgets.test_marks import SCENES

LARGER = 1.1
every_scene = pytest.mark.parametrize("kind", SCENES, ids=lambda kind: kind.__name__)


def scenes_of_every_choice(kind):
    """What there is to see after any one choice in a new widget."""
    widget = kind()
    for control in kind.list_controls(widget.settings()):
        for choice in control.choices:
            yield scene_with(kind, widget.settings() | choice.change)


@every_scene
def test_a_scene_is_a_pure_function_to_plain_json_and_a_widget_sends_it_and_is_made_with_its_controls_in_order(kind):
    widget, settings = kind(), kind().settings()
    scene = widget.current_scene()
    assert scene == scene_with(kind, settings) == scene_with(kind, {}) and widget.settings() == settings
    plain, frames = json.loads(json.dumps(scene.plain())), json.loads(json.dumps(widget.frames))
    if issubclass(kind, SteppedExplorable):
        frames |= frames["scenes"][widget.step] | {"marks": [plain_mark(mark) for mark in
                                                             marks_of_film(frames, widget.step)]}
    assert {name: value for name, value in plain.items() if name not in ("asked", "sentence")}.items() <= frames.items()
    with pytest.raises(FrozenInstanceError):
        scene.headline = "another"
    assert kind(*settings.values()).current_scene() == scene
    assert list(inspect.signature(kind).parameters)[:len(settings)] == list(settings)
    with pytest.raises(TypeError):
        kind(*settings.values(), "one too many")


@every_scene
def test_every_choice_of_every_control_is_listed_and_can_be_shown_and_a_change_makes_new_frames(kind):
    widget, choices = kind(), values_of(kind())
    assert choices and all(len(values) > 1 for values in choices.values())
    assert len(kind.list_controls(widget.settings())) <= 4
    for scene in scenes_of_every_choice(kind):
        assert scene.sentence.startswith(f"{kind.__name__}, {scene.asked}: ")
        assert scene.headline[-20:] in scene.sentence and scene.alternative.startswith(scene.headline)
        # TeamView's may begin with the name of a variable, which is as it is
        assert kind is widgets.TeamView or not scene.headline[0].islower(), scene.headline
    before, sentence, settings = widget.current_scene(), repr(widget), widget.settings()
    change = next(choice.change for control in kind.list_controls(settings) for choice in control.choices
                  if settings | choice.change != settings)
    with widget.hold_trait_notifications():
        for name, value in change.items():
            setattr(widget, name, value)
    assert widget.current_scene().key != before.key and repr(widget) != sentence


@pytest.mark.parametrize("name, given, label, changes", [
    ("BucketOverlap", {"num_ranks": 1024}, "machine", [{"machine": "laptop, gloo", "num_ranks": 16}]),
    ("Stragglers", {"scheme": "asynchronous", "slack": None}, "scheme", [{"scheme": "local", "slack": 32}]),
    ("PipelineSchedule", {"slow": 3}, "ranks", [{"p": 3, "slow": None}, {"p": 4, "slow": 3}]),
    ("MeshExplorer", {"axis": "pp"}, "layout", [{"mesh": "dp8,tp8", "axis": "tp"}]),
    ("RingAttentionSteps", {"num_ranks": 4, "step": 3}, "ranks", [{"num_ranks": 2, "step": 1}]),
    ("LayoutPlanner", {}, "run", [{"run": "GPT of 310B, A100, Megatron 2021", "devices": 1920, "cut": "tp8,pp16",
                                   "how": "ZeRO-0, layers made again"}])])
def test_a_choice_that_does_not_fit_the_others_brings_what_does(name, given, label, changes):
    widget = getattr(widgets, name)(**given)
    control = next(control for control in widget.list_controls(widget.settings()) if control.label == label)
    assert all(change in [choice.change for choice in control.choices] for change in changes)


REFUSED = {
    "ActivationMemory": [{"split": "t = 3"}, {"tokens": 0}],
    "BucketOverlap": [{"machine": "laptop, gloo", "num_ranks": 32}, {"bucket_cap_mb": 2.5}, {"model": []}],
    "CollectiveExplorer": [{"op": "shuffle"}, {"op": ["gather"]}, {"op": "all_reduce", "algorithm": "fast"},
                           {"algorithm": "hierarchical", "num_ranks": 5}, {"num_ranks": 40}, {"step": 99}],
    "ExpertLoad": [{"balancing": "luck"}, {"strength": 0.5}],
    "FitsOrNot": [{"num_devices": 0}, {"model": "GPT-5"}, {"device": "Z100"}, {"model": "Mixtral 8x7B"},
                  {"gpu": "H100"}],
    "LayoutPlanner": [{"devices": 8000}, {"cut": "tp3,pp5"}, {"run": 7}],
    "MatrixCut": [{"first": "rows", "second": "rows", "t": 2, "step": 8}, {"t": 3}],
    "MeshExplorer": [{"axis": "cp"}, {"rank": 64}],
    "PipelineSchedule": [{"p": 9}, {"v": 2.0}, {"slow": 8}, {"placed": [["F0", "Q1"]]},
                         {"placed": 3}, {"stages": [["a"]]}, {"stages": [[0], [0]]},
                         {"schedule": 1}],
    "RingAllReduce": [{"num_ranks": 9}, {"num_ranks": True}, {"num_ranks": 3, "step": 5}, {"step": -1}, {"ranks": 3}],
    "RingAttentionSteps": [{"num_ranks": 4, "step": 4}, {"token_layout": "random"}],
    "Stragglers": [{"scheme": "local", "slack": None}, {"slack": True}, {"slack": 33}, {"who": []}],
    "TeamView": [{"name": "bias"}, {"snapshot": [1]}],
    "TokenDispatch": [{"k": 3}, {"balancing": -1}],
    "WhichWire": [{"call": "broadcast"}, {"group": []}, {"device": "L40S"}],
    "ZeroMemory": [{"recipe": "fp64"}, {"stage": 4}],
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused_with_the_reason_and_the_old_value_stays(name, snapshot):
    kind, reasons = getattr(widgets, name), []
    for wrong in REFUSED[name]:
        with pytest.raises(BadParameter) as refused:
            kind(**wrong)
        reasons.append(f"{wrong}: {refused.value}"[:200])
        *fine, (last, value) = wrong.items()
        widget = kind(**dict(fine))
        before = repr(widget), widget.settings(), widget.frames
        if last in kind.controls:
            with pytest.raises(BadParameter):
                setattr(widget, last, value)
        assert (repr(widget), widget.settings(), widget.frames) == before
    assert "\n".join(reasons) == snapshot


SLOW_RANDOM = "a random rank each step"
HAND = {"order": "by hand", "p": 2, "m": 2}


FINDINGS = [
    ("ActivationMemory", {}), ("BucketOverlap", {}), ("ExpertLoad", {}), ("ExpertLoad", {"balancing": "bias"}),
    ("ExpertLoad", {"balancing": "auxiliary loss"}),
    ("FitsOrNot", {"num_devices": 1}), ("FitsOrNot", {}), ("FitsOrNot", {"device": "V100"}),
    ("FitsOrNot", {"device": "A100", "model": "Chinchilla"}), ("FitsOrNot", {"device": "B200", "precision": "fp32"}),
    ("LayoutPlanner", {}), ("LayoutPlanner", {"devices": 1024}), ("LayoutPlanner", {"cut": "tp16,pp16"}),
    ("MatrixCut", {"step": 4}), ("MeshExplorer", {"order": "dp,cp,pp,tp", "axis": "tp"}),
    ("PipelineSchedule", {}), ("PipelineSchedule", {"order": "ZB-H2"}), ("PipelineSchedule", {"p": 1, "m": 3}),
    ("PipelineSchedule", {"order": "GPipe", "slow": 2}), ("PipelineSchedule", {**HAND, "placed": []}),
    *(("PipelineSchedule", {**HAND, "placed": [lane.split() for lane in lanes]}) for lanes in (
        ("F0", ""), ("F0 B0", "B0"), ("F0 B0 F1", "F1"), ("F0 F0", ""), ("F0 F1 B0 B1", "F0 I0 W0 F1 B1"))),
    ("RingAttentionSteps", {}), ("Stragglers", {}), ("Stragglers", {"scheme": "asynchronous"}),
    ("Stragglers", {"scheme": "asynchronous", "slack": None}), ("Stragglers", {"scheme": "local", "who": SLOW_RANDOM}),
    ("TeamView", {}), ("TeamView", {"name": "x"}), ("TeamView", {"name": "weight"}), ("TeamView", {"name": "loss"}),
    ("TokenDispatch", {}), ("WhichWire", {}), ("WhichWire", {"group": "one of each node"}),
    ("WhichWire", {"call": "all_to_all"}), ("ZeroMemory", {"model": "Llama 3 70B", "num_devices": 64}),
    ("ZeroMemory", {"model": "GPT-3", "num_devices": 1024, "stage": 1}),
    ("RingAllReduce", {"num_ranks": 4, "step": 3}),
    ("CollectiveExplorer", {"algorithm": "naive", "num_ranks": 4, "step": 6})]


@pytest.mark.parametrize("kind, given", FINDINGS, ids=[f"{kind} {given}" for kind, given in FINDINGS])
def test_a_widget_says_its_finding_and_its_numbers(kind, given, snapshot):
    assert repr(getattr(widgets, kind)(**given)) == snapshot


def crowded_words(figure):
    """Words that reach beyond the picture, and pairs of words that cover one another, in larger letters: how wide
    words are depends on the machine.
    """
    for text in figure.findobj(Text):
        text.set_fontsize(LARGER * text.get_fontsize())
    renderer = FigureCanvasAgg(figure).get_renderer()
    width, height = figure.bbox.max
    boxes = [(text.get_text(), text.get_window_extent(renderer))
             for text in figure.findobj(Text) if text.get_text() and text.get_visible()]
    outside = [words for words, at in boxes if at.x0 < 0 or at.y0 < 0 or at.x1 > width or at.y1 > height]
    covered = [(words, other) for number, (words, a) in enumerate(boxes) for other, b in boxes[number + 1:]
               if a.x0 < b.x1 and b.x0 < a.x1 and a.y0 + 1 < b.y1 and b.y0 + 1 < a.y1]
    return outside + covered


def painted(figure):
    """(kind, key, place, words, anchor) of the artists, in the order of painting; a scene's text is at its baseline."""
    for artist in sorted(figure.axes[0].get_children(), key=lambda artist: artist.get_zorder()):
        if (key := artist.get_gid()) is None:
            continue
        if isinstance(artist, Rectangle):
            yield "rect", key, (*artist.get_xy(), artist.get_width(), artist.get_height()), "", "start"
        elif isinstance(artist, PathPatch):
            yield "curve", key, tuple(artist.get_path().vertices.flatten()), "", "start"
        elif isinstance(artist, Line2D):
            (x1, x2), (y1, y2) = artist.get_data()
            yield "line", key, (x1, y1, x2, y2), "", "start"
        else:
            anchor = next(name for name, side in ALIGNED.items() if side == artist.get_ha())
            yield "text", key, artist.get_position(), artist.get_text(), anchor


@every_scene
def test_a_picture_is_the_scene_mark_by_mark_in_all_colours_and_is_painted_the_same_twice(kind):
    scene = scene_with(kind, {})
    figure = paint(scene)
    png = to_png(figure)
    assert [*painted(figure)] == [(mark.kind, mark.key, mark.at, mark.text, mark.anchor) for mark in scene.marks]
    bands = [artist for artist in figure.axes[0].patches if isinstance(artist, Rectangle) and artist.get_gid() is None]
    assert len(bands) == sum(mark.shares.count("1") for mark in scene.marks)
    (width, height), colours = size_and_colours(png)
    assert width > 900 and height > 200 and colours > 4
    assert png == to_png(kind().picture()) and crowded_words(figure) == []


def test_no_kind_of_activation_has_the_colour_of_the_chosen_way_of_parameters_or_of_gradients():
    looks = {ROLES[role].fill for role in (CORE, SPLIT, WHOLE)}
    assert len(looks) == 3 and not looks & {BLUE, ROLES["parameters"].fill, ROLES["gradients"].fill}


@pytest.mark.sweep(words="every choice of every widget; their defaults are looked at")
@every_scene
def test_no_words_of_a_picture_cover_one_another_or_reach_beyond_it_whatever_is_chosen(kind):
    for scene in scenes_of_every_choice(kind):
        assert crowded_words(paint(scene)) == [], scene.key


@pytest.mark.parametrize("name, model", [("FitsOrNot", "Llama 3 8B"), ("FitsOrNot", "GPT-3"),
                                         ("ZeroMemory", "Llama 3 70B")])
def test_no_verdict_lies_on_the_line_of_the_limit(name, model):
    crossing = 0
    for num_devices in [2**k for k in range(13)]:
        marks = scene_with(getattr(widgets, name), {"model": model, "num_devices": num_devices}).marks
        lines = [mark.at for mark in marks if mark.role == "limit" and mark.kind == "line"]
        verdicts = [mark for mark in marks if mark.role in ("verdict", "refusal")]
        crossing += len(lines)
        assert verdicts
        for (x, top, _, bottom), mark in ((line, mark) for line in lines for mark in verdicts):
            wide = width_of(mark.text, ROLES[mark.role].size, bold=ROLES[mark.role].bold)
            assert not (mark.at[0] < x < mark.at[0] + wide and top < mark.at[1] < bottom), mark
    assert crossing > 10


def test_a_widget_shows_as_view_picture_and_sentence():
    data, _ = widgets.RingAllReduce(num_ranks=4, step=3)._repr_mimebundle_()
    assert set(data) == {"text/plain", "image/png", "application/vnd.jupyter.widget-view+json"}


@pytest.mark.parametrize("op, algorithm", [("", ""), *MESSAGES])
def test_a_film_is_small_and_has_the_scenes_of_all_steps(op, algorithm):
    for num_ranks in (2, 8) if algorithm == "hierarchical" else (2, 5, 8):
        shown = widgets.CollectiveExplorer(op, algorithm, num_ranks) if op else widgets.RingAllReduce(num_ranks)
        frames = json.loads(text := json.dumps(shown.frames))
        assert values_of(shown)["step"] == [*range(len(frames["scenes"]))]
        for step, said in enumerate(frames["scenes"]):
            scene = scene_with(type(shown), shown.settings() | {"step": step})
            assert [plain_mark(mark) for mark in marks_of_film(frames, step)] == scene.plain()["marks"]
            assert said.items() <= scene.plain().items()
        assert len(text) < 50_000  # characters, once for each change of a parameter


def test_frames_follow_the_parameters_and_a_step_beyond_the_last_becomes_the_last():
    ring = widgets.RingAllReduce(num_ranks=8, step=14)
    ring.num_ranks = 3
    assert (ring.frames["scenes"][-1]["key"], ring.step) == ("n=3 step=4", 4)
    explorer = widgets.CollectiveExplorer("all_reduce", "naive", 4, step=6)
    with explorer.hold_trait_notifications():
        explorer.op, explorer.algorithm = "broadcast", "tree"
    assert (explorer.frames["scenes"][-1]["key"], explorer.step) == ("broadcast tree n=4 step=2", 2)
    ring = widgets.RingAllReduce(num_ranks=8, step=14)
    ring.set_state({"step": 12, "num_ranks": 2})  # by the browser
    assert (ring.num_ranks, ring.step) == (2, 2)
    ring.set_state({"step": 14})
    assert ring.step == 2
    assert repr(widgets.TokenDispatch(capacity_factor=1).capacity_factor) == "1.0"  # a browser says 1 for it
