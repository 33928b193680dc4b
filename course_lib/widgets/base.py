"""Explorable: a widget that Python computes and the browser draws, with a picture and a sentence for everywhere else.

A widget has traits for what the reader may set, and `controls` names those whose change makes a new picture. Most
pictures are a Scene of course_lib.pictures, which is drawn once, in Python, and painted by painter.js and painter.py:

    class Doubler(SceneExplorable):
        num = WholeNumber(1, 1, 9)
        controls = ("num",)

        @classmethod
        def draw(cls, settings): return Scene(...)  # settings: {"num": 1}

        @classmethod
        def list_controls(cls, settings): return [slider("number", "num", range(1, 10), settings["num"])]

Where that is not enough, name.js beside name.py has `export default { render }` and finds the helpers of explorable.js,
painter.js and controls.js above itself. Python sends all frames once for each change of the parameters, so that
stepping through them needs no answer from the kernel.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anywidget
import traitlets

from course_lib import pictures
from course_lib.pictures import palette
from course_lib.pictures.palette import INK, RANK_COLOURS, ink_on
from course_lib.pictures.scene import Scene
from course_lib.widgets.controls import Control

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
    """Base of all widgets that show something. `controls` names the traits whose change makes new `frames`."""

    controls: tuple[str, ...] = ()
    frames = traitlets.Dict().tag(sync=True, echo_update=False)

    def __init_subclass__(cls, script: str | Path | None = None, **kwargs: Any) -> None:
        if script is not None:
            cls._esm, cls._css = browser_code(*STAND_ON, Path(inspect.getfile(cls)).parent / script)
        super().__init_subclass__(**kwargs)
        # What Shift+Tab shows: a widget is made with its controls, in their order, where it does not say otherwise.
        parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
        if cls.__init__ is Explorable.__init__:
            parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD,
                                            default=getattr(cls, name).default_value) for name in cls.names()]
        cls.__signature__ = inspect.Signature(parameters)

    def __init__(self, *values: Any, **parameters: Any) -> None:
        refuse_unknown(type(self).__name__, parameters, self.names())
        super().__init__(**self.__signature__.bind(*values, **parameters).arguments if values else parameters)
        self.frames = self.compute()
        self._computed = self.settings()
        self.observe(self._recompute, names=list(self.controls))

    @classmethod
    def names(cls) -> list[str]:
        """The parameters that a new widget takes: its controls, and its step where it has one."""
        return [*cls.controls, *(["step"] if hasattr(cls, "step") and "step" not in cls.controls else [])]

    def settings(self) -> dict[str, Any]:
        """The parameters as they are set now."""
        return {name: getattr(self, name) for name in self.controls}

    def parameters(self) -> dict[str, list[Any]]:
        """The finite choices of each control, by parameter, where the others stay as they are."""
        raise NotImplementedError

    def _recompute(self, change: Any) -> None:
        settings = self.settings()
        if settings != self._computed:  # of several changes at once the first has computed for all
            self._computed = settings
            self.frames = self.compute()

    def compute(self) -> dict[str, Any]:
        """All that the browser draws for these parameters, as JSON can hold it."""
        raise NotImplementedError


class SteppedExplorable(Explorable):
    """An Explorable with a `step` that goes from 0 to frames["num_steps"]; the browser steps on its own."""

    step = WholeNumber(1, 0)

    def num_steps(self) -> int:
        """How many steps there are with the present parameters."""
        raise NotImplementedError

    def parameters(self) -> dict[str, list[Any]]:
        return {"step": list(range(self.num_steps() + 1))}

    @traitlets.validate("step")
    def _not_beyond_the_last(self, proposal: Any) -> int:
        if proposal.value > self.num_steps():
            raise BadParameter(f"step={proposal.value}: expected a whole number from 0 to {self.num_steps()}")
        return proposal.value

    def _recompute(self, change: Any) -> None:
        with self.hold_sync():  # one message to the browser in place of two
            self.step = min(self.step, self.num_steps())
            super()._recompute(change)

    def set_state(self, sync_data: dict[str, Any]) -> None:
        """What the browser asks for. Its step may be one that the parameters of the same moment do not have."""
        super().set_state({name: value for name, value in sync_data.items() if name != "step"})
        if "step" in sync_data:
            super().set_state({"step": min(sync_data["step"], self.num_steps())})


class SceneExplorable(Explorable, script="scene_widget.js"):
    """An Explorable whose picture is a Scene. Subclasses have `draw`, `list_controls` and, where traits depend on one
    another, `check_settings`; all three are pure functions of the parameters."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._fits = traitlets.validate(*cls.controls)(SceneExplorable._checked_value)

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

    @classmethod
    def scene(cls, parameters: Mapping[str, Any]) -> Scene:
        """What there is to see with `parameters`; those not given are as in a new widget. Changes no widget.

        BadParameter for what cannot be.
        """
        refuse_unknown(cls.__name__, parameters, cls.controls)
        traits = {name: cls.class_traits()[name] for name in cls.controls}
        settings = {name: parameters.get(name, trait.default_value) for name, trait in traits.items()}
        for name, trait in traits.items():
            if isinstance(trait, Setting):
                trait.validate(None, settings[name])
        return cls.draw(cls.check_settings(settings))

    def parameters(self) -> dict[str, list[Any]]:
        return {name: values for control in self.list_controls(self.settings())
                for name, values in control.values().items()}

    def current_scene(self) -> Scene:
        """What there is to see now."""
        return self.draw(self.settings())

    def compute(self) -> dict[str, Any]:
        controls = [control.plain() for control in self.list_controls(self.settings())]
        return {**self.current_scene().plain(), "controls": controls}

    def sentence(self) -> str:
        return self.current_scene().sentence

    def picture(self) -> Figure:
        from course_lib.pictures.painter import paint

        return paint(self.current_scene())


def refuse_unknown(name: str, parameters: Mapping[str, Any], known: Sequence[str]) -> None:
    if unknown := sorted(parameters.keys() - {*known}):
        raise BadParameter(f"{name} has no parameter {', '.join(unknown)}: expected {' or '.join(known)}")


def require_one_of(name: str, value: Any, known: Sequence[Any]) -> None:
    """BadParameter unless `value` is one of `known`; it may be something that has no hash."""
    if value not in list(known):
        raise BadParameter(f"{name}={value!r}: expected one of {', '.join(map(repr, known))}")
