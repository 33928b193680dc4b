"""Explorable: a widget that Python computes and the browser draws, with a picture and a sentence for everywhere else.

A widget has traits for what the reader may set, and `controls` names those whose change makes a new picture. Most
pictures are a Scene of course_lib.pictures, which is drawn once, in Python, and painted by painter.js and painter.py:

    class Doubler(SceneExplorable):
        num = WholeNumber(1, 1, 9).tag(sync=True, echo_update=False)
        controls = ("num",)

        @classmethod
        def draw(cls, asked): return Scene(...)  # asked: {"num": 1}

        @classmethod
        def list_controls(cls, asked): return [slider("number", "num", range(1, 10), asked["num"])]

Where that is not enough, name.js beside name.py has `export default { render }` and finds the helpers of explorable.js,
painter.js and controls.js above itself. Python sends all frames once for each change of the parameters, so that
stepping through them needs no answer from the kernel.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import anywidget
import traitlets
from matplotlib.figure import Figure

from course_lib import pictures
from course_lib.pictures import painter, roles
from course_lib.pictures.figures import to_png
from course_lib.pictures.palette import INK, RANK_COLOURS, ink_on
from course_lib.pictures.scene import Scene
from course_lib.widgets.controls import Control

HERE = Path(__file__).parent
STAND_ON = [HERE / "explorable.js", Path(pictures.__file__).parent / "painter.js", HERE / "controls.js"]
PALETTE = {"ranks": RANK_COLOURS, "onRanks": [ink_on(colour) for colour in RANK_COLOURS], "ink": INK,
           "roles": roles.for_javascript()}
IN_DARK = '[data-jp-theme-light="false"] .explorable'


class BadParameter(ValueError, traitlets.TraitError):
    """A parameter that cannot be; traitlets takes back the change."""


class WholeNumber(traitlets.TraitType):
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


class Explorable(anywidget.AnyWidget):
    """Base of all widgets. `controls` names the traits whose change makes new `frames`."""

    controls: tuple[str, ...] = ()
    frames = traitlets.Dict().tag(sync=True, echo_update=False)

    def __init_subclass__(cls, script: str | Path | None = None, **kwargs: Any) -> None:
        if script is not None:
            sources = [*STAND_ON, Path(inspect.getfile(cls)).parent / script]
            texts = [source.read_text(encoding="utf-8") for source in sources]
            cls._esm = "\n".join([f"const PALETTE = {json.dumps(PALETTE)};", *texts])
            sheet = (HERE / "explorable.css").read_text(encoding="utf-8")
            cls._css = "\n".join([roles.style_sheet(".explorable", IN_DARK), sheet])
        super().__init_subclass__(**kwargs)

    def __init__(self, **parameters: Any) -> None:
        known = [*self.controls, *(["step"] if self.has_trait("step") else [])]
        refuse_unknown(type(self).__name__, parameters, known)
        super().__init__(**parameters)
        self.frames = self.compute()
        self._computed = self.asked()
        self.observe(self._recompute, names=list(self.controls))

    def asked(self) -> dict[str, Any]:
        """The parameters as they are set now."""
        return {name: getattr(self, name) for name in self.controls}

    def parameters(self) -> dict[str, list[Any]]:
        """The finite choices of each control, by parameter, where the others stay as they are."""
        raise NotImplementedError

    def _recompute(self, change: Any) -> None:
        asked = self.asked()
        if asked != self._computed:  # of several changes at once the first has computed for all
            self._computed = asked
            self.frames = self.compute()

    def compute(self) -> dict[str, Any]:
        """All that the browser draws for these parameters, as JSON can hold it."""
        raise NotImplementedError

    def sentence(self) -> str:
        """What there is to see, with its numbers, the same on every machine."""
        raise NotImplementedError

    def picture(self) -> Figure:
        """What the browser draws, drawn without one."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return self.sentence()

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        bundle = super()._repr_mimebundle_(**kwargs) or {}
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        return {**data, "text/plain": self.sentence(), "image/png": to_png(self.picture())}, metadata


class SteppedExplorable(Explorable):
    """An Explorable with a `step` that goes from 0 to frames["num_steps"]; the browser steps on its own."""

    step = WholeNumber(1, 0).tag(sync=True, echo_update=False)

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
    another, `check_asked`; all three are pure functions of the parameters."""

    @classmethod
    def draw(cls, asked: dict[str, Any]) -> Scene:
        """The scene for these parameters, which are all there and possible."""
        raise NotImplementedError

    @classmethod
    def list_controls(cls, asked: dict[str, Any]) -> list[Control]:
        """The controls, each with its choices, at most four."""
        raise NotImplementedError

    @classmethod
    def check_asked(cls, asked: dict[str, Any]) -> dict[str, Any]:
        """The parameters as the traits shall hold them; BadParameter where they cannot be."""
        return asked

    @classmethod
    def scene(cls, parameters: Mapping[str, Any]) -> Scene:
        """What there is to see with `parameters`; those not given are as in a new widget. Changes no widget.

        BadParameter for what cannot be.
        """
        refuse_unknown(cls.__name__, parameters, cls.controls)
        traits = {name: cls.class_traits()[name] for name in cls.controls}
        asked = {name: parameters.get(name, trait.default_value) for name, trait in traits.items()}
        for name, trait in traits.items():
            if isinstance(trait, WholeNumber):
                trait.validate(None, asked[name])
        return cls.draw(cls.check_asked(asked))

    def parameters(self) -> dict[str, list[Any]]:
        return {name: values for control in self.list_controls(self.asked())
                for name, values in control.values().items()}

    def shown(self) -> Scene:
        """What there is to see now."""
        return self.draw(self.asked())

    def compute(self) -> dict[str, Any]:
        return {**self.shown().plain(), "controls": [control.plain() for control in self.list_controls(self.asked())]}

    def sentence(self) -> str:
        return self.shown().sentence

    def picture(self) -> Figure:
        return painter.paint(self.shown())

    def _possible(self, proposal: Any) -> Any:
        """For @traitlets.validate: a change must fit the other parameters."""
        name = proposal.trait.name
        return self.check_asked(self.asked() | {name: proposal.value})[name]


def refuse_unknown(name: str, parameters: Mapping[str, Any], known: Sequence[str]) -> None:
    if unknown := sorted(parameters.keys() - {*known}):
        raise BadParameter(f"{name} has no parameter {', '.join(unknown)}: expected {' or '.join(known)}")


def require_one_of(name: str, value: Any, known: Sequence[Any]) -> None:
    """BadParameter unless `value` is one of `known`; it may be something that has no hash."""
    if value not in list(known):
        raise BadParameter(f"{name}={value!r}: expected one of {', '.join(map(repr, known))}")
