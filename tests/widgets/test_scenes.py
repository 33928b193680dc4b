"""Scenes are pure, plain JSON, and have room for all their words, for every choice of every control."""

import inspect
import json
from dataclasses import FrozenInstanceError

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from course_lib import widgets
from course_lib.pictures.figures import to_png
from course_lib.pictures.painter import paint
from course_lib.widgets import (
    BucketOverlap,
    CollectiveExplorer,
    FitsOrNot,
    PipelineSchedule,
    RingAllReduce,
    Stragglers,
    TeamView,
)
from course_lib.widgets.base import BadParameter, SceneExplorable

SCENES = [kind for name in widgets.__all__ if isinstance(kind := getattr(widgets, name), type)
          and issubclass(kind, SceneExplorable)]
LARGER = 1.1
every_scene = pytest.mark.parametrize("kind", SCENES, ids=lambda kind: kind.__name__)


def scenes_of_every_choice(kind):
    """What there is to see after any one choice in a new widget."""
    widget = kind()
    for control in kind.list_controls(widget.settings()):
        for choice in control.choices:
            yield kind.scene(widget.settings() | choice.change)


@every_scene
def test_a_scene_is_a_pure_function_to_plain_json_and_the_widget_sends_it(kind):
    widget = kind()
    before = widget.settings()
    scene = widget.scene(widget.settings())
    assert scene == widget.scene({}) == kind.scene({}) and widget.settings() == before
    plain = json.loads(json.dumps(scene.plain()))
    assert plain.items() <= json.loads(json.dumps(widget.frames)).items()
    with pytest.raises(FrozenInstanceError):
        scene.headline = "another"


@every_scene
def test_a_widget_is_made_with_its_controls_in_their_order_and_shows_them_as_its_signature(kind):
    settings = kind().settings()
    assert kind(*settings.values()).current_scene() == kind().current_scene()
    assert list(inspect.signature(kind).parameters)[:len(settings)] == list(settings)
    with pytest.raises(TypeError):
        kind(*settings.values(), "one too many")


@pytest.mark.parametrize("kind", [kind for kind in SCENES if kind is not TeamView], ids=lambda kind: kind.__name__)
def test_a_headline_begins_as_a_sentence_does(kind):
    """TeamView's may begin with the name of a variable, which is as it is."""
    assert [scene.headline for scene in scenes_of_every_choice(kind) if scene.headline[0].islower()] == []


@every_scene
def test_every_choice_of_every_control_is_listed_and_can_be_shown(kind):
    widget = kind()
    choices = widget.parameters()
    assert choices and all(len(values) > 1 for values in choices.values())
    for name, values in choices.items():
        for value in values:
            scene = kind.scene({name: value})
            assert scene.sentence.startswith(f"{kind.__name__}, {scene.asked}: ")
            assert scene.headline[-20:] in scene.sentence and scene.alternative.startswith(scene.headline)
            assert len({mark.key for mark in scene.marks}) == len(scene.marks)
    assert len(kind.list_controls(widget.settings())) <= 4


def test_choices_follow_the_other_parameters_and_a_value_of_ones_own_joins_a_slider():
    assert BucketOverlap(machine="laptop, gloo").parameters()["num_ranks"] == [2, 4, 8, 16]
    assert FitsOrNot(num_devices=24).parameters()["num_devices"][3:7] == [8, 16, 24, 32]
    assert Stragglers().parameters()["slack"][-1] is None and Stragglers(scheme="local").parameters()["slack"][-1] == 32
    assert PipelineSchedule(p=3).parameters()["slow"] == [None, 0, 1, 2]
    assert RingAllReduce(num_ranks=3).parameters() == {"num_ranks": list(range(2, 9)), "step": list(range(5))}
    assert CollectiveExplorer(algorithm="hierarchical").parameters()["num_ranks"] == [2, 4, 6, 8]


def test_a_choice_that_does_not_fit_the_others_brings_what_does():
    machines = BucketOverlap.list_controls(BucketOverlap(num_ranks=1024).settings())[1]
    assert next(choice.change for choice in machines.choices if choice.label == "laptop, gloo") == {
        "machine": "laptop, gloo", "num_ranks": 16}
    schemes = Stragglers.list_controls(Stragglers(scheme="asynchronous", slack=None).settings())[0]
    assert [choice.change["slack"] for choice in schemes.choices] == [None, 32, None]
    ranks = PipelineSchedule.list_controls(PipelineSchedule(slow=3).settings())[1]
    assert [choice.change for choice in ranks.choices][:3] == [{"p": 2, "slow": None}, {"p": 3, "slow": None},
                                                               {"p": 4, "slow": 3}]


@pytest.mark.parametrize("kind, wrong, words", [
    (FitsOrNot, {"num_devices": 0}, "num_devices=0: expected a whole number from 1 to 100000"),
    (FitsOrNot, {"model": "GPT-5"}, "model='GPT-5': expected one of"),
    (FitsOrNot, {"gpu": "H100"}, "FitsOrNot has no parameter gpu"),
    (BucketOverlap, {"machine": "laptop, gloo", "num_ranks": 32}, "at most 16 with laptop, gloo"),
    (Stragglers, {"scheme": "local", "slack": None}, "slack=None"), (PipelineSchedule, {"p": 9}, "p=9"),
])
def test_a_scene_of_what_cannot_be_is_refused_with_the_reason(kind, wrong, words):
    with pytest.raises(BadParameter, match=words):
        kind.scene(wrong)


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


@pytest.mark.sweep("kind", few=[FitsOrNot, PipelineSchedule], all=SCENES, ids=lambda kind: kind.__name__,
                   words=f"every choice in 2 widgets of {len(SCENES)}")
def test_no_words_of_a_picture_cover_one_another_or_reach_beyond_it_whatever_is_chosen(kind):
    for scene in scenes_of_every_choice(kind):
        assert crowded_words(paint(scene)) == [], scene.key


@every_scene
def test_a_picture_is_painted_the_same_twice(kind):
    assert to_png(paint(kind.scene({}))) == to_png(kind().picture())
