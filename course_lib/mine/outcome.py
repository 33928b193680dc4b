"""What came of a run with the reader's answers: whose code sent how much, and whether the loss is one process's."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from course_lib.hybrid_parallel import TrainingReport
from course_lib.mine.find import YOURS, Answers, Part, cell
from course_lib.mine.put import Account
from course_lib.pictures.drawn import Drawn

ALLOWED = 1e-4  # of the loss: what orders of summation make of a step is a thousandth of it


@dataclass(frozen=True, repr=False)
class Outcome(Drawn):
    """one_process: the losses of the same steps on one process."""

    answers: Answers
    account: Account
    report: TrainingReport
    one_process: Sequence[float]

    @property
    def largest_difference(self) -> float:
        """Between the losses of a step, as a share of the loss."""
        return max(abs(a - b) / abs(b) for a, b in zip(self.report.losses, self.one_process))

    @property
    def lies_on_one_process(self) -> bool:
        """Whether the loss of every step is that of one process, up to ALLOWED."""
        return len(self.report.losses) == len(self.one_process) and self.largest_difference <= ALLOWED

    @property
    def sent_in_all(self) -> int:
        """Bytes that all ranks together send in a step."""
        return sum((self.report.bytes_by_axis or {}).values())

    @property
    def sent_by_answers(self) -> dict[str, int]:
        """Bytes of a step that the reader's code sent, by exercise; the rest is the course's."""
        return {number: num_bytes for number, num_bytes in sorted(self.account.sent.items()) if number and num_bytes}

    def describe_part(self, part: Part) -> str:
        """What came of a part in this run, in words."""
        calls = self.account.calls.get(part.number, 0)
        if part.whose != YOURS:
            return "the course's"
        return f"{calls:,} calls" if calls else f"not used under {self.report.layout}"

    def finding(self) -> str:
        used = [part for part in self.answers.parts if self.account.calls.get(part.number)]
        yours, everything = sum(self.sent_by_answers.values()), self.sent_in_all
        return "\n".join([
            f"{len(self.answers.numbers)} of {len(self.answers.parts)} parts are yours, and {len(used)} of them worked "
            f"under {self.report.layout}",
            f"your code sent {yours:,} of {everything:,} bytes of a step" + f" ({yours / everything:.0%})" * bool(
                everything),
            *(f"  {part.number} {part.function}: {self.describe_part(part)}" + (
                f", {self.sent_by_answers[part.number]:,} bytes" if part.number in self.sent_by_answers else "")
              for part in used),
            self.verdict()])

    def verdict(self) -> str:
        """Whether the losses are one process's, in words."""
        n = len(self.report.losses)
        if self.lies_on_one_process:
            return f"the losses of {n} steps lie on one process's, to {ALLOWED:g} of the loss"
        at = next((step for step, (a, b) in enumerate(zip(self.report.losses, self.one_process))
                   if abs(a - b) > ALLOWED * abs(b)), min(n, len(self.one_process)))
        return (f"the losses leave one process's at step {at} of {n}: one of your parts passes its check and does "
                "something else in training. Leave them out one by one: --without 5.5")

    def html(self) -> str:
        rows = "".join(f"<tr>{cell(part.number)}{cell(part.function)}{cell(part.work)}{cell(self.describe_part(part))}"
                       f"{cell(f'{self.account.sent.get(part.number, 0):,}')}</tr>" for part in self.answers.parts)
        head = "".join(map(cell, ("", "function", "its work", "in this run", "bytes of a step")))
        first, second, *_, last = self.finding().splitlines()
        return (f"<p><b>{escape(first)}</b><br>{escape(second)}<br>{escape(last)}</p>"
                f"<table><tr>{head}</tr>{rows}</table>")
