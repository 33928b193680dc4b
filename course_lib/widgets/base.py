"""Explorable: a widget that Python computes and the browser draws, with a picture and a sentence for everywhere else.

A widget has Settings, which its reader may move, and a Scene of course_lib.pictures, which is drawn once, in Python,
and painted by painter.js and painter.py:

    def scene_of(num): return sheet.scene(...)

    class Doubler(Explorable, draw=scene_of):
        num = WholeNumber(1, 1, 9)

        @classmethod
        def list_controls(cls, settings): return [slider("number", "num", range(1, 10), settings["num"])]

Where that is not enough, name.js beside name.py has `export default { render }` and finds the helpers of explorable.js,
painter.js and controls.js above itself. A SteppedExplorable sends the scenes of all its steps at once, so that stepping
through them needs no answer from the kernel.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anywidget
import traitlets

from course_lib import pictures
from course_lib.pictures import palette
from course_lib.pictures.palette import INK, RANK_COLOURS, ink_on
from course_lib.pictures.scene import Scene, film

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HERE = Path(__file__).parent
STAND_ON = [HERE / "explorable.js", Path(pictures.__file__).parent / "painter.js", HERE / "controls.js"]
PALETTE = {"ranks": RANK_COLOURS, "onRanks": [ink_on(colour) for colour in RANK_COLOURS], "ink": INK,
           "roles": palette.for_javascript()}
IN_DARK = '[data-jp-theme-light="false"] .explorable'


class BadParameter(ValueError, traitlets.TraitError):
    """A parameter that cannot be; traitlets takes back the change."""


class Setting(traitlets.TraitType):
    """What a reader may set, in Python or in the browser."""

    def __init__(self, default: Any) -> None:
        super().__init__(default)
        self.tag(sync=True, echo_update=False)

    def validate(self, obj: Any, value: Any) -> Any:
        """Anything, None included, as far as check_settings has nothing against it. (traitlets.Any with allow_none asks
        nobody about a None.)
        """
        return value


class WholeNumber(Setting):
    """A whole number from `lowest` to `highest` (None: no limit). Anything else is a BadParameter."""

    def __init__(self, default: int, lowest: int, highest: int | None = None) -> None:
        super().__init__(default)
        self.lowest, self.highest = lowest, highest

    def validate(self, obj: Any, value: Any) -> int:
        whole = isinstance(value, int) and not isinstance(value, bool)
        if whole and value >= self.lowest and (self.highest is None or value <= self.highest):
            return value
        limits = f"{self.lowest} or more" if self.highest is None else f"from {self.lowest} to {self.highest}"
        raise BadParameter(f"{self.name}={value!r}: expected a whole number {limits}")


class OneOf(Setting):
    """One of `choices`, as it stands among them: a browser says 1 for 1.0. Anything else is a BadParameter."""

    def __init__(self, default: Any, choices: Iterable[Any]) -> None:
        super().__init__(default)
        self.choices = list(choices)

    def validate(self, obj: Any, value: Any) -> Any:
        require_one_of(self.name, value, self.choices)
        return next(choice for choice in self.choices if choice == value)


@dataclass(frozen=True)
class Choice:
    """`change`: the parameters to set, all at once, so that Python never sees some that do not fit together."""

    label: str
    change: dict[str, Any]


@dataclass(frozen=True)
class Control:
    """A slider, chooser or player with a finite number of choices. It shows the one whose `names` are as they are."""

    kind: str
    label: str
    names: tuple[str, ...]
    choices: tuple[Choice, ...]
    enabled: bool = True

    def plain(self) -> dict[str, Any]:
        return {**vars(self), "choices": [vars(choice) for choice in self.choices]}


Change = Callable[[Any], dict[str, Any]]


def slider(label: str, name: str, values: Iterable[Any], own: Any, show: Callable[[Any], str] = str,
           change: Change | None = None, enabled: bool = True) -> Control:
    """Over `values` in increasing order; `own`, which Python may have set, joins them. None stays first or comes last.

    change(value): what choosing it sets, where that is more than `name`.
    """
    values = list(values)
    known = {*values, own}
    none, numbers = [None] * (None in known), sorted(known - {None})
    ordered = none + numbers if values[0] is None else numbers + none
    return Control("slider", label, (name,), choices_of(name, ordered, show, change), enabled)


def chooser(label: str, name: str, values: Iterable[Any], show: Callable[[Any], str] = str,
            change: Change | None = None) -> Control:
    return Control("chooser", label, (name,), choices_of(name, values, show, change))


def player(last: int) -> Control:
    """Steps from 0 to `last`, which the browser plays, or goes through by a slider."""
    return Control("player", "step", ("step",), choices_of("step", range(last + 1), str, None))


def choices_of(name: str, values: Iterable[Any], show: Callable[[Any], str],
               change: Change | None) -> tuple[Choice, ...]:
    return tuple(Choice(show(value), change(value) if change else {name: value}) for value in values)


def browser_code(*scripts: Path) -> tuple[str, str]:
    """A widget's JavaScript, `scripts` behind the palette, and the style sheet of all widgets."""
    texts = [script.read_text(encoding="utf-8") for script in scripts]
    sheet = (HERE / "explorable.css").read_text(encoding="utf-8")
    return ("\n".join([f"const PALETTE = {json.dumps(PALETTE)};", *texts]),
            "\n".join([palette.style_sheet(".explorable", IN_DARK), sheet]))


class StaticView(anywidget.AnyWidget):
    """A widget with a sentence, and perhaps a picture, for where no browser is."""

    def sentence(self) -> str:
        """What there is to see, with its numbers, the same on every machine."""
        raise NotImplementedError

    def picture(self) -> Figure | None:
        """What the browser draws, drawn without one."""
        return None

    def __repr__(self) -> str:
        return self.sentence()

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        bundle = super()._repr_mimebundle_(**kwargs) or {}
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        data = {**data, "text/plain": self.sentence()}
        if (picture := self.picture()) is not None:
            from course_lib.pictures.painter import to_png  # where widgets run on a page there is no matplotlib

            data["image/png"] = to_png(picture)
        return data, metadata


class Explorable(StaticView):
    """Base of all widgets whose picture is a Scene. A subclass is made with draw=, which takes its parameters, and has
    `list_controls` and, where traits depend on one another, `check_settings`; all are pure functions of the parameters.

    `controls`, its Settings if it does not say otherwise, are the traits whose change makes new `frames`. script: a
    file of JavaScript beside it, where that of all others is not enough.
    """

    controls: tuple[str, ...] = ()
    frames = traitlets.Dict().tag(sync=True, echo_update=False)
    _esm, _css = browser_code(*STAND_ON, HERE / "scene_widget.js")

    def __init_subclass__(cls, draw: Callable[..., Scene] | None = None, script: str | Path | None = None,
                          **kwargs: Any) -> None:
        own = [name for name, trait in vars(cls).items() if isinstance(trait, Setting) and name not in cls.controls]
        cls.controls = (*own, *cls.controls)
        cls._fits = traitlets.validate(*cls.controls)(cls._checked_value)
        if draw is not None:
            cls.draw = staticmethod(lambda settings: draw(**settings))
        if script is not None:
            cls._esm, cls._css = browser_code(*STAND_ON, Path(inspect.getfile(cls)).parent / script)
        super().__init_subclass__(**kwargs)
        # What Shift+Tab shows: a widget is made with its controls, in their order, where it does not say otherwise.
        parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
        if cls.__init__ is Explorable.__init__:
            parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD,
                                            default=getattr(cls, name).default_value) for name in cls.controls]
        cls.__signature__ = inspect.Signature(parameters)

    def __init__(self, *values: Any, **parameters: Any) -> None:
        refuse_unknown(type(self).__name__, parameters, self.controls)
        super().__init__(**self.__signature__.bind(*values, **parameters).arguments if values else parameters)
        self.frames = self.compute()
        self._computed = self.settings()
        self.observe(self._recompute, names=list(self.controls))

    def settings(self) -> dict[str, Any]:
        """The parameters as they are set now."""
        return {name: getattr(self, name) for name in self.controls}

    def _recompute(self, change: Any) -> None:
        settings = self.settings()
        if settings != self._computed:  # of several changes at once the first has computed for all
            self._computed = settings
            self.frames = self.compute()

    def _checked_value(self, proposal: Any) -> Any:
        """A change must fit the other parameters."""
        name = proposal.trait.name
        return self.check_settings(self.settings() | {name: proposal.value})[name]

    @classmethod
    def draw(cls, settings: dict[str, Any]) -> Scene:
        """The scene for these parameters, which are all there and possible."""
        raise NotImplementedError

    @classmethod
    def list_controls(cls, settings: dict[str, Any]) -> list[Control]:
        """The controls, each with its choices, at most four."""
        raise NotImplementedError

    @classmethod
    def check_settings(cls, settings: dict[str, Any]) -> dict[str, Any]:
        """The parameters as the traits shall hold them; BadParameter where they cannot be."""
        return settings

    def current_scene(self) -> Scene:
        """What there is to see now."""
        return self.draw(self.settings())

    def compute(self) -> dict[str, Any]:
        """All that the browser draws for these parameters, as JSON can hold it."""
        controls = [control.plain() for control in self.list_controls(self.settings())]
        return {**self.current_scene().plain(), "controls": controls}

    def sentence(self) -> str:
        return self.current_scene().sentence

    def picture(self) -> Figure:
        from course_lib.pictures.painter import paint

        return paint(self.current_scene())


class SteppedExplorable(Explorable):
    """An Explorable with a `step`, one of its controls. All steps go to the browser at once, as a film, which it
    plays without asking Python: `draw` does not look at what the step was before.
    """

    step = WholeNumber(1, 0)
    controls: tuple[str, ...] = ("step",)

    @classmethod
    def last_step(cls, settings: dict[str, Any]) -> int:
        """The number of the last step. BadParameter for parameters that cannot be."""
        raise NotImplementedError

    @classmethod
    def check_settings(cls, settings: dict[str, Any]) -> dict[str, Any]:
        require_step(settings["step"], cls.last_step(settings))
        return settings

    def _checked_value(self, proposal: Any) -> Any:
        """A new step must be there; a step that another change makes too large becomes the last one."""
        name = proposal.trait.name
        others = self.settings() if name == "step" else self.settings() | {"step": 0}
        return self.check_settings(others | {name: proposal.value})[name]

    def _recompute(self, change: Any) -> None:
        if change.name == "step":  # the browser has it already
            return
        with self.hold_sync():  # one message to the browser in place of two
            self.step = min(self.step, self.last_step(self.settings()))
            super()._recompute(change)

    def set_state(self, sync_data: dict[str, Any]) -> None:
        """What the browser asks for. Its step may be one that the parameters of the same moment do not have."""
        super().set_state({name: value for name, value in sync_data.items() if name != "step"})
        if "step" in sync_data:
            super().set_state({"step": min(sync_data["step"], self.last_step(self.settings()))})

    def compute(self) -> dict[str, Any]:
        settings = self.settings()
        scenes = [self.draw(settings | {"step": step}) for step in range(self.last_step(settings) + 1)]
        controls = [control.plain() for control in self.list_controls(settings) if control.kind != "player"]
        return {**film(scenes), "controls": controls}


def require_step(step: int, last: int) -> None:
    if step > last:
        raise BadParameter(f"step={step}: expected a whole number from 0 to {last}")


def refuse_unknown(name: str, parameters: Mapping[str, Any], known: Sequence[str]) -> None:
    if unknown := sorted(parameters.keys() - {*known}):
        raise BadParameter(f"{name} has no parameter {', '.join(unknown)}: expected {' or '.join(known)}")


def require_one_of(name: str, value: Any, known: Sequence[Any]) -> None:
    """BadParameter unless `value` is one of `known`; it may be something that has no hash."""
    if value not in list(known):
        raise BadParameter(f"{name}={value!r}: expected one of {', '.join(map(repr, known))}")
