"""What holds for every widget of course_lib.widgets in a real JupyterLab: keyboard, tab order, contrast, motion, words
for who cannot see the picture; and that the browser and the PNG show what the scene says."""

import json

import pytest
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from course_lib import widgets
from course_lib.pictures.painter import ALIGNED, paint
from course_lib.pictures.roles import css_class
from course_lib.widgets.base import SceneExplorable
from tests.browser.widget import NAME, Widget
from tools.harness.browser import THEMES

EVERY = [name for name in widgets.__all__ if isinstance(kind := getattr(widgets, name), type)
         and issubclass(kind, widgets.Explorable) and kind is not widgets.Explorable]
SCENES = [name for name in EVERY if issubclass(getattr(widgets, name), SceneExplorable)]
# A ring that plays, lanes, bars, lines, a grid of letters: what the drawings of the others are made of.
FEW = ["RingAllReduce", "PipelineSchedule", "ZeroMemory", "BucketOverlap", "MeshExplorer"]
of_few = pytest.mark.sweep("names", few=[FEW], all=[EVERY], ids=["widgets"],
                           words=f"{len(FEW)} widgets of {len(EVERY)}")
pytestmark = [pytest.mark.browser, of_few]
IMPORTS = f"import json\nfrom course_lib.widgets import {', '.join(EVERY)}"
# Counts, from now on, what goes to the kernel for the widget and comes from it, and how often its picture is drawn.
COUNT = """(picture) => {
    const counts = window.counts = { sent: 0, received: 0, drawn: 0, moved: 0 };
    const kernel = window.jupyterapp.shell.currentWidget.sessionContext.session.kernel;
    window.uncount?.();
    const count = (_, { msg, direction }) => {
        if (msg.header.msg_type !== "comm_msg" || msg.content.data.method === "echo_update") return;
        counts[direction === "send" ? "sent" : "received"] += 1;
    };
    kernel.anyMessage.connect(count);
    const observer = new MutationObserver((changes) => {
        const draws = ({ type, attributeName }) => type === "childList" || attributeName === "data-key";
        counts.drawn += changes.filter(draws).length;
        const moving = () => picture.firstChild.dataset.moving || picture.firstChild.dataset.key.endsWith("moving");
        counts.moved += Boolean(moving());
    });
    observer.observe(picture, { childList: true });
    observer.observe(picture.firstChild, { attributes: true, attributeFilter: ["data-key", "data-moving"] });
    window.uncount = () => { kernel.anyMessage.disconnect(count); observer.disconnect(); };
}"""
# What moves a slider or a chooser, by whether it stands at its end.
KEYS = {"input": {False: "ArrowRight", True: "ArrowLeft"}, "select": {False: "ArrowDown", True: "ArrowUp"}}
AT_ITS_END = """(node) => (node.tagName === "SELECT" ? node.selectedIndex + 1 >= node.options.length
    : Number(node.value) >= Number(node.max))"""


@pytest.fixture
def every(run_cells, names):
    """Every widget of `names`, new, by name."""

    def opened(**how):
        notebook = run_cells(IMPORTS, *(f"{name.lower()} = {name}()\n{name.lower()}" for name in names), **how)
        return {name: Widget(notebook, number) for number, name in enumerate(names)}

    return opened


def controls_of(widget):
    """[name, whether it is a slider, a chooser or a button] of what can be used, in the order of the page."""
    return widget.root.locator(".controls").evaluate(f"""(controls) =>
        [...controls.querySelectorAll("input, select, button")]
            .filter((node) => !node.disabled && node.checkVisibility())
            .map((node) => [({NAME})(node), node.tagName.toLowerCase()])""")


def settings_of(widget, name):
    """How the widget stands in the kernel."""
    return json.loads(widget.notebook.ask(f"print(json.dumps({name.lower()}.settings()))"))


def counted(widget):
    return widget.page.evaluate("window.counts")


def test_at_most_four_controls_are_reached_by_tab_in_order_have_names_and_keep_their_keys(every):
    for name, widget in every().items():
        controls = [control for control, _ in controls_of(widget)]
        assert 1 <= len(controls) <= 4 and all(controls), name
        assert widget.tab_order(controls[0], len(controls)) == controls, name


def test_a_key_on_any_control_is_one_message_and_one_drawing_and_python_knows(every):
    for name, widget in every().items():
        for control, kind in controls_of(widget):
            if kind == "button":
                continue
            before, settings = widget.key(), widget.notebook.ask(f"print({name.lower()}.get_state())")
            widget.root.locator(".picture").evaluate(COUNT)
            widget.press(control, KEYS[kind][widget.control(control).evaluate(AT_ITS_END)])
            widget.wait_for_another(before)
            assert widget.notebook.ask(f"print({name.lower()}.get_state())") != settings, (name, control)
            counts = counted(widget)
            assert (counts["sent"], counts["drawn"]) == (1, 1) and counts["received"] <= 1, (name, control, counts)
        assert widget.notebook.console_errors == []


def test_the_picture_has_words_for_who_cannot_see_it_and_the_headline_is_announced(every):
    for name, widget in every().items():
        said = widget.root.get_by_role("img").get_attribute("aria-label")
        assert said.startswith(widget.headline()) and len(said) > len(widget.headline()) + 20, name
        assert widget.root.locator(".headline").get_attribute("aria-live") == "polite"
        assert widget.notebook.ask(f"print({name.lower()})").startswith(name)


@pytest.mark.parametrize("theme", THEMES)
def test_words_can_be_told_from_what_lies_below_them_stay_inside_and_apart(every, theme):
    shown = every()
    next(iter(shown.values())).notebook.change_theme(theme)
    for name, widget in shown.items():
        widget.photograph(f"{name}_{theme}")
        assert min(widget.contrasts()) >= 4.5, name
        assert widget.crowded() == [], name


def moves(shown):
    """How often each widget was seen in motion after a key, or playing for a step."""
    seen = {}
    for name, widget in shown.items():
        before = widget.key()
        widget.root.locator(".picture").evaluate(COUNT)
        if name in SCENES:
            usable = [each for each in controls_of(widget) if each[1] in KEYS]
            control, kind = min(usable, key=lambda each: each[1] != "input")  # a slider, where there is one
            widget.press(control, KEYS[kind][widget.control(control).evaluate(AT_ITS_END)])
        else:
            widget.press("Play", "Space")
        widget.wait_for_another(before)
        widget.root.locator(".picture > svg:not([data-moving]):not([data-key$='moving'])").wait_for()
        seen[name] = counted(widget)["moved"]
    return seen


def test_pictures_move_but_not_for_readers_who_want_no_motion(every):
    assert all(moves(every()).values())
    assert not any(moves(every(reduced_motion=True)).values())


def painted_by_matplotlib(figure):
    """The marks as they were made artists, in the order of painting; a scene's text stands at its baseline."""
    marks = []
    for artist in sorted(figure.axes[0].get_children(), key=lambda artist: artist.get_zorder()):
        if artist.get_gid() is None:
            continue
        mark = {"kind": "text", "key": artist.get_gid(), "text": "", "anchor": "start"}
        if isinstance(artist, Rectangle):
            mark |= {"kind": "rect", "at": [artist.get_x(), artist.get_y(), artist.get_width(), artist.get_height()]}
        elif isinstance(artist, Line2D):
            (x1, x2), (y1, y2) = artist.get_data()
            mark |= {"kind": "line", "at": [x1, y1, x2, y2]}
        else:
            anchor = next(name for name, side in ALIGNED.items() if side == artist.get_ha())
            mark |= {"at": list(artist.get_position()), "text": artist.get_text(), "anchor": anchor}
        marks.append(mark)
    return marks


def require_same(scene, browser, figure):
    marks = [{"kind": mark.kind, "key": mark.key, "at": list(mark.at), "text": mark.text, "anchor": mark.anchor}
             for mark in scene.marks]
    assert painted_by_matplotlib(figure) == marks
    assert [{name: mark[name] for name in marks[0]} for mark in browser] == marks
    assert [mark["class"] for mark in browser] == [css_class(mark.role) for mark in scene.marks]


def test_the_browser_and_the_png_show_mark_by_mark_what_the_scene_says_before_and_after_every_control_has_moved(every):
    for name, widget in every().items():
        if name not in SCENES:
            continue
        kind = getattr(widgets, name)
        for control in [None, *(control for control, tag in controls_of(widget) if tag == "input")]:
            if control:
                before = widget.key()
                widget.press(control, "End")
                widget.wait_for_another(before)
            scene = kind.scene(settings_of(widget, name))
            widget.wait_for(scene.key)
            assert (widget.headline(), widget.root.locator(".detail").text_content()) == (scene.headline, scene.detail)
            require_same(scene, widget.painted(), paint(scene))
