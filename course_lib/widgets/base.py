"""Explorable: a widget that Python computes and the browser draws, with a picture and a sentence for everywhere else.

A widget is two files. name.py has a subclass: traits for what the reader may set, `compute`, `sentence` and `picture`.
name.js has `export default { render }`, and finds the helpers of explorable.js above itself. Python sends all frames
once for each change of the parameters, so that stepping through them needs no answer from the kernel.

    class Doubler(Explorable, script="doubler.js"):
        num = WholeNumber(1, 1, 9).tag(sync=True, echo_update=False)
        parameters = ("num",)

        def compute(self): return {"twice": 2 * self.num}
        def sentence(self): return f"Doubler: twice {self.num} is {2 * self.num}"
        def picture(self): return figure
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import anywidget
import traitlets
from matplotlib.figure import Figure

from course_lib.pictures.figures import to_png
from course_lib.pictures.palette import INK, RANK_COLOURS, ink_on

HERE = Path(__file__).parent
PALETTE = {"ranks": RANK_COLOURS, "onRanks": [ink_on(colour) for colour in RANK_COLOURS], "ink": INK}


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
    """Base of all widgets. `parameters` names the traits whose change makes new `frames`."""

    parameters: tuple[str, ...] = ()
    frames = traitlets.Dict().tag(sync=True, echo_update=False)

    def __init_subclass__(cls, script: str | Path | None = None, **kwargs: Any) -> None:
        if script is not None:
            sources = [HERE / "explorable.js", Path(inspect.getfile(cls)).parent / script]
            texts = [source.read_text(encoding="utf-8") for source in sources]
            cls._esm = "\n".join([f"const PALETTE = {json.dumps(PALETTE)};", *texts])
            cls._css = (HERE / "explorable.css").read_text(encoding="utf-8")
        super().__init_subclass__(**kwargs)

    def __init__(self, **parameters: Any) -> None:
        known = [*self.parameters, *(["step"] if self.has_trait("step") else [])]
        unknown = sorted(parameters.keys() - {*known})
        if unknown:
            raise BadParameter(f"{type(self).__name__} has no parameter {', '.join(unknown)}: "
                               f"expected {' or '.join(known)}")
        super().__init__(**parameters)
        self.frames = self.compute()
        self.observe(self._recompute, names=list(self.parameters))

    def _recompute(self, change: Any) -> None:
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
