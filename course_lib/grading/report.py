"""What `check` answers: a verdict in words, the likely cause, the budget beside what was measured."""

from dataclasses import dataclass
from enum import Enum
from html import escape

OVER_BUDGET = 0.5  # of the points: a right answer that spends too much has the idea, and half of what was asked

# The marker of a <summary> goes with `display: list-item`; the theme's own colours make it a button in light and dark.
BUTTON = ("display: inline-block; cursor: pointer; padding: 0.1em 0.8em; border-radius: 3px; "
          "border: 1px solid var(--jp-border-color0, #888); background-color: var(--jp-layout-color2, #eee); "
          "color: var(--jp-content-font-color1, inherit)")


class Verdict(Enum):
    """Words, a sign and a colour: the theme's own where there is one."""

    CORRECT = ("correct", "✓", "var(--jp-success-color1, #2e7d32)")
    COSTLY = ("right, but over budget", "◐", "var(--jp-warn-color0, #b26a00)")
    NOT_WRITTEN = ("not written yet", "○", "var(--jp-info-color1, #0277bd)")
    TRIED = ("no verdict: this copy has no right answers, and your teacher's grader gives the points", "▷",
             "var(--jp-info-color1, #0277bd)")  # by a copy without judges
    WRONG = ("not right yet", "✗", "var(--jp-error-color1, #c62828)")


@dataclass(frozen=True, repr=False)
class Report:
    """The answer to one check. It draws itself in a notebook, and its text is the same on every machine."""

    number: str
    function: str
    verdict: Verdict
    out_of: int  # points
    budget: str
    measured: str = ""
    cause: str = ""
    hint: str = ""
    warned: str = ""  # what Python or torch warned of
    over_budget: float = OVER_BUDGET  # share of the points for what is right and over budget
    hints: tuple[str, ...] = ()  # behind buttons, the next one inside the one before; the last is nearly the code

    @property
    def passed(self) -> bool:
        """Whether the answer is right and within its budgets."""
        return self.verdict is Verdict.CORRECT

    @property
    def points(self) -> float:
        """All points for that; a share of them for a right answer that costs too much; else 0."""
        return self.out_of * {Verdict.CORRECT: 1.0, Verdict.COSTLY: self.over_budget}.get(self.verdict, 0.0)

    def _headline(self) -> str:
        words = self.verdict.value[0]
        if self.verdict is Verdict.TRIED:
            return f"{self.number} {self.function}: {words}"
        return f"{self.number} {self.function}: {words}, {self.points:g} of {self.out_of} points"

    def _details(self) -> dict[str, str]:
        outcome = "outcome" if self.verdict is Verdict.TRIED else "measured"
        details = {"why": self.cause, "budget": self.budget, outcome: self.measured, "hint": self.hint,
                   "warning": self.warned}
        return {name: text for name, text in details.items() if text}

    def __repr__(self) -> str:
        lines = [f"{self.verdict.value[1]} {self._headline()}"]
        lines += [f"  {name}: {text}".replace("\n", "\n    ") for name, text in self._details().items()]
        lines += [f"  hints: {len(self.hints)}, behind buttons where this report is shown"] * bool(self.hints)
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        _, sign, colour = self.verdict.value
        rows = "".join(
            f'<div style="display: flex; gap: 0.6em; margin-top: 0.3em"><span style="min-width: 5em; '
            f'color: var(--jp-content-font-color2, inherit)">{name}</span>'
            f'<span style="white-space: pre-wrap; font-family: var(--jp-code-font-family, monospace)">{escape(text)}'
            f'</span></div>' for name, text in self._details().items())
        return (f'<div style="border-left: 4px solid {colour}; padding: 0.3em 0.8em; '
                f'color: var(--jp-content-font-color1, inherit)"><b><span style="color: {colour}">{sign}</span> '
                f'{escape(self._headline())}</b>{rows}{hint_buttons(self.hints)}</div>')


def hint_buttons(hints: tuple[str, ...]) -> str:
    """Each hint in a <details>, which opens without a kernel; the next one's button is inside, so it comes after."""
    html = ""
    for number, text in reversed(list(enumerate(hints, 1))):
        last = number == len(hints)
        font = "pre; overflow-x: auto; font-family: var(--jp-code-font-family, monospace)" if last else "pre-wrap"
        html = (f'<details style="margin-top: 0.4em"><summary style="{BUTTON}">hint {number}</summary>'
                f'<div style="margin: 0.4em 0; white-space: {font}">{escape(text)}</div>{html}</details>')
    return html
