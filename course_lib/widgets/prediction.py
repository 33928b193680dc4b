"""A prediction comes before its answer: the reader types or picks one, locks it, and the cell that measures answers.

    guess = predict("How many bytes does a rank send?", unit="bytes")     a widget, in a cell of its own
    guess.against(measured=log.sent_bytes, formula=2 * (n - 1) / n * M)   a picture of all three; without a
                                                                          prediction a line of text
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import traitlets

from course_lib.pictures.drawn import Drawn
from course_lib.pictures.palette import BLUE, INK, ORANGE, TEAL
from course_lib.pictures.units import BYTES_IN, human_bytes, human_seconds
from course_lib.widgets.base import HERE, BadParameter, StaticView, browser_code

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLOSE = 0.1  # a prediction this near, relative to what was measured, is called right
HEIGHT_IN, HEADLINE_ALONE_IN = 1.9, 0.4

BYTES = {**BYTES_IN, "TB": 10**12, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
SECONDS = {"s": 1, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9, "min": 60, "h": 3600, "days": 86_400}
# In the size of the unit itself.
ENDINGS = {
    "bytes": BYTES,
    "MB": {ending: size / 1e6 for ending, size in BYTES.items()},
    "s": SECONDS,
    "hours": {ending: size / 3600 for ending, size in SECONDS.items()},
    "million": {"million": 1, "M": 1, "billion": 1e3},
    "times": {"times": 1, "x": 1},
    "%": {"%": 1},
}
# What else people write for an ending; upper and lower case are one.
SPELLINGS = {
    "byte": "B", "k": "kB", "m": "MB", "g": "GB", "t": "TB", "kilobyte": "kB", "megabyte": "MB", "gigabyte": "GB",
    "sec": "s", "second": "s", "us": "µs", "μs": "µs", "minute": "min", "hour": "h", "day": "days", "percent": "%",
    "×": "x",
}
# A comma, a space or _ stands between thousands, three digits each; a decimal part has a point.
NUMBER = re.compile(r"(?:(?:about|around|roughly|ca\.?|~|≈)\s*)?"
                    r"([-+−]?(?:\d{1,3}(?:[,_ ]\d{3})+|\d+)?(?:\.\d*)?(?:e[-+]?\d+)?)\s*([^\d\s.,][^\d.,]*)?",
                    re.IGNORECASE)
DECIMAL_COMMA = re.compile(r"\d,(?!\d{3}(?!\d))")

Answer = float | str
Question = tuple[str, str, tuple[str, ...]]

_asked: dict[Question, Prediction] = {}  # in this kernel: a cell that is run again must not lose an answer


def predict(question: str, unit: str = "", options: Sequence[str] | None = None) -> Prediction:
    """A question to commit to before it is measured: a number in `unit`, or one of `options`.

    The same question in the same kernel is the same widget, with the answer that was locked.

    ValueError for options that are no texts, or fewer than two.
    """
    if options is not None and (len({*options}) < 2 or not all(isinstance(option, str) for option in options)):
        raise ValueError(f"options={options!r}: expected at least two different texts to choose from, or None")
    asked = (question, unit, tuple(options or ()))
    known = _asked.get(asked)
    if known is None or known.comm is None:  # never asked, or closed since
        _asked[asked] = Prediction(question=question, unit=unit, options=list(options or ()))
        if known is not None and known.locked:
            _asked[asked].lock(known.locked)
    return _asked[asked]


class Prediction(StaticView):
    """The widget of `predict`. `answer` is None until it is locked, and then stays what it is, until `unlock`.

    The browser asks for both in messages, {"lock": text} and {"unlock": true}, so that texts are read in one place:
    here. What is no answer comes back as {"refused": sentence}.
    """

    _esm, _css = browser_code(HERE / "explorable.js", HERE / "prediction.js")

    question = traitlets.Unicode().tag(sync=True)
    unit = traitlets.Unicode().tag(sync=True)
    options = traitlets.List(traitlets.Unicode()).tag(sync=True)
    locked = traitlets.Unicode("").tag(sync=True)  # what the reader typed or picked; empty: nothing yet
    meaning = traitlets.Unicode("").tag(sync=True)  # how `locked` was read

    def __init__(self, **traits: Any) -> None:
        super().__init__(**traits)
        self.on_msg(self._hear)

    @property
    def answer(self) -> Answer | None:
        return answer_of(self.locked, self.options, self.unit) if self.locked else None

    def lock(self, answer: Answer) -> None:
        """Lock an answer from Python. ValueError for what is no answer, or where there is another one already."""
        text = str(answer)
        if self.locked not in ("", text):
            raise BadParameter(f"the prediction is locked, {self.locked}: unlock() it to predict anew")
        meant = answer_of(text, self.options, self.unit)
        with self.hold_sync():
            self.meaning = "" if isinstance(meant, str) else exact(meant, self.unit)
            self.locked = text

    def unlock(self) -> None:
        """Forget the answer, to predict anew."""
        self.locked = self.meaning = ""

    def _hear(self, widget: Any, content: dict[str, Any], buffers: Any) -> None:
        if content.get("unlock"):
            return self.unlock()
        try:
            return self.lock(content["lock"])
        except BadParameter as error:
            return self.send({"refused": str(error)})

    def against(self, measured: Answer, formula: Answer | None = None, source: str = "measured") -> PredictionOutcome:
        """The prediction beside what came out, and beside what a formula says. Without a prediction it says so.

        source: how the first figure came about, where nothing was measured: "computed", "simulated", "published".
        """
        if self.options and measured not in self.options:
            raise ValueError(f"measured={measured!r}: expected one of the options {list(self.options)}")
        if source in ("you", "formula"):
            raise ValueError(f"source={source!r} has a mark of its own: expected another word, such as 'computed'")
        return PredictionOutcome(self.question, self.unit, self.answer, measured, formula, source)

    def sentence(self) -> str:
        said = f"you said {number_words(self.answer, self.unit)}" if self.locked else "nothing is locked yet"
        return f"Prediction: {self.question} ({said})"


def answer_of(text: str, options: Sequence[str], unit: str) -> Answer:
    """What a typed text means. BadParameter for what is no answer."""
    if options:
        if text not in options:
            raise BadParameter(f"{text!r}: expected one of {', '.join(options)}")
        return text
    try:
        return read_number(text, unit)
    except ValueError as error:
        raise BadParameter(str(error)) from None


def read_number(text: str, unit: str) -> float:
    """What `text` means, in `unit`; an ending such as "MB" says otherwise. ValueError for what is no number."""
    found = NUMBER.fullmatch(text.strip())
    if found:
        digits, ending = found[1], (found[2] or "").strip()
        size = sizes(unit).get(spelling(ending, unit))
        try:
            number = float(re.sub("[,_ ]", "", digits).replace("−", "-"))
        except ValueError:
            number = math.nan
        if size is not None and math.isfinite(number):
            return number * size
    raise ValueError(f"{text!r}: {hint_for(text, unit)}")


def sizes(unit: str) -> dict[str, float]:
    """The endings that are understood, in lower case, with the size of one of them in `unit`."""
    known = {ending.lower(): size for ending, size in ENDINGS.get(unit, {}).items()}
    return {"": 1.0, unit.lower(): 1.0, unit.lower().removesuffix("s"): 1.0, **known}


def spelling(ending: str, unit: str) -> str:
    """An ending in lower case, as `sizes` has it."""
    plain = ending.lower()
    if plain in sizes(unit):
        return plain
    return SPELLINGS.get(plain, SPELLINGS.get(plain.removesuffix("s"), plain)).lower()


def hint_for(text: str, unit: str) -> str:
    """What would have been understood, said to somebody who typed `text`."""
    if DECIMAL_COMMA.search(text):
        return "a comma stands between thousands only, as in 1,300; a decimal part has a point, as in 1.3"
    endings = ENDINGS.get(unit, {})
    of_unit = f" of {unit}" if unit else ""
    with_ending = f", alone or with {', '.join(endings)} behind it" if len(endings) > 1 else ""
    return f"expected a number{of_unit}{with_ending}, such as 1200 or 1.2e3"


@dataclass(frozen=True, repr=False)
class PredictionOutcome(Drawn):
    """What was predicted, what was measured, what the formula says. `answer` is None where nothing was predicted.

    `source` stands beside `measured` in the picture.
    """

    question: str
    unit: str
    answer: Answer | None
    measured: Answer
    formula: Answer | None = None
    source: str = "measured"

    def finding(self) -> str:
        """Without a prediction the answer alone, which tests/nbval_sanitize.cfg leaves out: measured times are no two
        alike."""
        if self.answer is None:
            return f"Answer: {self.all_digits()} (no prediction was locked)"
        return f"Prediction: {self.question} {self.headline()}{f' ({self.exactly()})' if self.exactly() else ''}"

    def all_digits(self) -> str:
        """What came out, and what the formula says where that is another number."""
        words = [exact(value, self.unit) for value in (self.measured, self.formula) if value is not None]
        return words[0] if len({*words}) == 1 else f"{words[0]}; the formula says {words[1]}"

    def alternative(self) -> str:
        if self.answer is None:
            return self.finding()
        formula = "" if self.formula is None else f"; the formula says {number_words(self.formula, self.unit)}"
        return f"Prediction: {self.question} {self.headline()}{formula}"

    def exactly(self) -> str:
        """All digits of bytes, which the headline rounds; empty where it does not."""
        if self.unit != "bytes" or max(map(abs, self.marks().values())) < 1000:
            return ""
        return ", ".join(f"{name} {exact(value, self.unit)}" for name, value in self.marks().items())

    def headline(self) -> str:
        said, measured = number_words(self.answer, self.unit), number_words(self.measured, self.unit)
        return f"you said {said}, and it is {measured}: {self.verdict()}"

    def verdict(self) -> str:
        if isinstance(self.measured, str) or isinstance(self.answer, str):
            return "right" if self.answer == self.measured else "not so"
        if self.answer == self.measured:
            return "exactly right"
        if abs(self.answer - self.measured) <= CLOSE * abs(self.measured):
            return "about right"
        if self.answer * self.measured <= 0:
            return "too much" if self.answer > self.measured else "too little"
        ratio = self.answer / self.measured
        much = ratio > 1 if self.measured > 0 else ratio < 1
        factor = max(ratio, 1 / ratio)
        return f"{factor:.3g} times too {'much' if much else 'little'}"

    def figure(self) -> Figure | None:
        if self.answer is None:  # one dot on an axis says no more than the text
            return None
        from course_lib.pictures.painter import new_figure

        if not self.on_a_line():
            return new_figure(HEADLINE_ALONE_IN, self.headline(), "")
        formula = "" if self.formula is None else f"the formula says {number_words(self.formula, self.unit)}"
        figure = new_figure(HEIGHT_IN, self.headline(), self.exactly() or formula)
        draw_line(figure, self.marks(), self.unit)
        return figure

    def marks(self) -> dict[str, Answer]:
        named = {"you": self.answer, self.source: self.measured, "formula": self.formula}
        return {name: value for name, value in named.items() if value is not None}

    def on_a_line(self) -> bool:
        return all(not isinstance(value, str) for value in self.marks().values())


def draw_line(figure: Figure, marks: dict[str, float], unit: str) -> None:
    """The numbers on one axis that begins at 0, or a logarithmic one where they are far apart."""
    from course_lib.pictures.painter import quiet

    axes = figure.subplots()
    colours = {"you": ORANGE, "formula": TEAL}
    for row, (name, value) in enumerate(marks.items()):
        # Unclipped: half of a dot at 0 would be missing.
        axes.plot([value], [-row], "o", ms=8, color=colours.get(name, BLUE), clip_on=False)
        axes.annotate(f"{name}: {number_words(value, unit)}", (value, -row), (9, 0), textcoords="offset points",
                      fontsize=8.5, va="center", color=INK)
    values = list(marks.values())
    if min(values) > 0 and max(values) > 20 * min(values):
        axes.set_xscale("log")
        axes.set_xlim(min(values) / 2, max(values) * 8)
    else:
        axes.set_xlim(min(0, min(values) * 1.3), max(0, max(values)) * 1.45 or 1)
        if not any(values):
            axes.set_xticks([0])  # no unit is small enough for the others
    axes.set_ylim(0.6 - len(marks), 0.6)
    axes.set_yticks([])
    axes.xaxis.set_major_formatter(lambda value, _: tick(value, unit))
    axes.xaxis.set_minor_formatter(lambda value, _: "")
    quiet(axes)
    axes.spines["left"].set_visible(False)


def number_words(value: Answer, unit: str) -> str:
    if isinstance(value, str):
        return value
    if unit == "bytes" and value >= 0:
        return human_bytes(value)
    if unit == "s" and value > 0:
        return human_seconds(value)
    return f"{value:,.4g}{'' if unit == '%' else ' ' * bool(unit)}{unit}"


def exact(value: Answer, unit: str) -> str:
    return f"{value:,.0f} bytes" if unit == "bytes" and not isinstance(value, str) else number_words(value, unit)


def tick(value: float, unit: str) -> str:
    """As `shown`, and never two different ticks alike: 1.25 MB is not 1.2 MB."""
    if unit != "bytes" or value < 0:
        return number_words(value, unit)
    ending, size = next(((ending, size) for ending, size in BYTES_IN.items() if value < 1000 * size), ("GB", 1e9))
    return f"{value / size:.4g} {ending}"
