"""The reader's answers, each checked once: which train, and what comes of a run with them beside one process.

    answers = find("workspace/exercises")       answers.whys["5.1"]: why it is the course's; "" where it is yours
    run(answers, "dp2,pp2,tp2")                 whose code did what, and whether the losses are one process's
"""

import inspect
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import nbformat
import torch

from course_lib.grading import recorded
from course_lib.grading.registry import exercise
from course_lib.grading.report import Verdict
from course_lib.grading.selfstudy import check_exercise
from course_lib.grading.staying import StayingAttempts
from course_lib.hybrid_parallel import ParallelLayout
from course_lib.hybrid_parallel.parallelize import require_trainable
from course_lib.mine.holes import HOLES, Cells, fill_holes, run_cells
from course_lib.mine.loop import MAX_NORM, ORDERS, make_model, train
from course_lib.pictures.drawn import Drawn
from course_lib.reference import GPTConfig, load_text
from course_lib.reference import train as train_one_process
from course_lib.runtime import LaunchError, context, launch

ALLOWED = 1e-8  # of the loss: in 64 bits another order of summation makes less than a millionth of it
DAY_S = 24 * 3600.0
NAMES = {number: HOLES[number].__name__ for number in sorted(HOLES)}


# Which answers there are

@dataclass(frozen=True, repr=False)
class Answers(Drawn):
    """Of each exercise that has a hole: why the course's own is in it, "" for the reader's, and the cells that have it.
    """

    whys: Mapping[str, str]
    cells: Mapping[str, Cells]

    @property
    def yours(self) -> dict[str, Cells]:
        """The exercises whose answers train, with their cells."""
        return {number: self.cells[number] for number, why in self.whys.items() if not why}

    def finding(self) -> str:
        return "\n".join([f"{len(self.yours)} of {len(self.whys)} parts are yours", *(
            f"  {number} {NAMES[number]}: " + (f"the course's, {why}" if why else f"yours {recorded.work(number)}")
            for number, why in self.whys.items())])


def read_cells(path: Path) -> Cells:
    """The code cells of a notebook of exercises, without those that check."""
    cells = nbformat.read(path, as_version=4).cells
    marks = [cell.metadata.get("nbgrader", {}) for cell in cells]
    return [{"source": cell.source, "name": f"cell {place} in {path.name}", "own": bool(mark.get("solution"))}
            for place, (cell, mark) in enumerate(zip(cells, marks), 1)
            if cell.cell_type == "code" and not mark.get("grade")]


def find(folder: Path | str, without: Collection[str] = ()) -> Answers:
    """The answers in `folder`, which has 02_collectives/02_collectives.ipynb and so on, as exercises/ has.

    without: exercises whose answers are left out. Starts ranks, on the CPU. ValueError for a folder without notebooks,
    and for an exercise in `without` that has no hole.
    """
    if unknown := sorted(set(without) - set(NAMES)):
        raise ValueError(f"without {', '.join(unknown)}: expected some of {', '.join(NAMES)}")
    paths = [path for path in sorted(Path(folder).glob("[0-9][0-9]_*/[0-9][0-9]_*.ipynb"))
             if path.stem == path.parent.name]  # not a newer copy beside it
    if not paths:
        raise ValueError(f"no exercises in {str(folder)!r}: expected 02_collectives/02_collectives.ipynb and so on, as "
                         "`make lab` makes them in workspace/exercises")
    whys, cells = dict.fromkeys(NAMES, "there is no notebook of its chapter"), {}
    with StayingAttempts() as attempts:
        for path in paths:
            numbers = [number for number in NAMES if number.startswith(f"{int(path.stem[:2])}.")]
            own = read_cells(path) if numbers else []
            functions, errors = run_cells(own, {})
            for number in numbers:
                cells[number], function = own, functions.get(NAMES[number])
                if number in without:
                    whys[number] = "left out, as you asked"
                elif inspect.isfunction(function):
                    whys[number] = refusal(number, function, attempts)
                else:
                    whys[number] = "; ".join([f"there is no function of this name in {path.name}", *errors])
    return Answers(whys, cells)


def refusal(number: str, function: Callable, attempts: StayingAttempts) -> str:
    """What `check` has against an answer, in a line; "" for one that is right."""
    report = check_exercise(exercise(number), function, attempts=attempts)
    if report.verdict in (Verdict.CORRECT, Verdict.COSTLY):
        return ""
    return f"{report.verdict.value[0]}: {report.cause}".rstrip(": ").partition("\n")[0]


# A run with them

def train_on_a_rank(answers: Mapping[str, Cells], *arguments: Any, **options: Any) -> tuple:
    """train(*arguments) with `answers` in its holes: (losses, their calls, bytes that they sent), on this rank."""
    with fill_holes(answers) as ledger:
        return train(*arguments, **options), ledger.calls, ledger.sent


def losses_of_one_process(config: GPTConfig, steps: int, **data: Any) -> Sequence[float]:
    """The losses of the same steps on the whole model, by the course's plain training loop."""
    log = train_one_process(
        make_model(config, data.get("seed", 0)), steps=steps, held_out=False, progress=False, **data,
        after_backward=lambda model: torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM))
    return log.losses


def require_fitting(config: GPTConfig, layout: ParallelLayout, schedule: str, **sizes: Any) -> None:
    """ValueError for what this loop does not know, and for what nothing in the course could train."""
    if schedule not in ORDERS:
        raise ValueError(f"schedule={schedule!r} has no hole: expected one of {', '.join(ORDERS)}")
    if layout.ep * layout.etp > 1 or layout.zero_stage in (1, 3) or config.dropout:
        raise ValueError(f"{layout}, dropout={config.dropout}: expected dp, pp, cp and tp, zero2 or none, no dropout")
    with torch.device("meta"):
        require_trainable(make_model(config, 0), layout, schedule=schedule, **sizes)


def run(answers: Answers, layout: str | ParallelLayout, steps: int = 6, config: GPTConfig | None = None, *,
        num_microbatches: int = 1, schedule: str = "1F1B", verbose: bool = False, **data: Any) -> "Outcome":
    """Train on the layout's ranks, on the CPU, with `answers` in the holes, and once more on one process, to compare.

    data: batch_size, learning_rate, tokens and seed, as loop.train has them. ValueError for what it does not know;
    LaunchError where a rank fails.
    """
    layout = ParallelLayout.from_string(layout) if isinstance(layout, str) else layout
    config, how = config or GPTConfig(), {"num_microbatches": num_microbatches, "schedule": schedule}
    require_fitting(config, layout, batch_size=data.get("batch_size", 16), **how)
    # Options are not given to launch, which has a seed, too.
    found = launch(partial(train_on_a_rank, answers.yours, config, layout, steps, verbose=verbose, **how, **data),
                   world_size=layout.world_size, device="cpu", timeout=DAY_S)
    alone, = launch(partial(losses_of_one_process, config, steps, **data), world_size=1, device="cpu", timeout=DAY_S)
    losses, calls, sent = zip(*found)
    sent = {number: int(num_bytes) for number, num_bytes in sum(sent, Counter()).items()}
    return Outcome(answers, str(layout), sum(calls, Counter()), sent, int(found.communication.sent_bytes),
                   losses[0], alone, found.communication.agrees_with_wire())


@dataclass(frozen=True, repr=False)
class Outcome(Drawn):
    """calls, sent: of the answers, by exercise, on all ranks; `sent`, and `sent_in_all`, are bytes of the last step.

    losses, one_process: of the same steps. agrees_with_wire: whether the operating system saw `sent_in_all`, too.
    """

    answers: Answers
    layout: str
    calls: Mapping[str, int]
    sent: Mapping[str, int]
    sent_in_all: int
    losses: Sequence[float]
    one_process: Sequence[float]
    agrees_with_wire: bool

    @property
    def differences(self) -> list[float]:
        """Of each step's loss from one process's, as a share of it."""
        return [abs(a - b) / abs(b) for a, b in zip(self.losses, self.one_process)]

    @property
    def lies_on_one_process(self) -> bool:
        """Whether the loss of every step is that of one process, up to ALLOWED."""
        return max(self.differences) <= ALLOWED

    def finding(self) -> str:
        yours, everything = sum(self.sent.values()), self.sent_in_all
        return "\n".join([
            f"{len(self.answers.yours)} of {len(self.answers.whys)} parts are yours, and {len(self.calls)} of them "
            f"worked under {self.layout}",
            f"your code sent {yours:,} of {everything:,} bytes of a step ({yours / max(1, everything):.0%})",
            *(f"  {number} {NAMES[number]}: {self.calls[number]:,} calls"
              + (f", {self.sent[number]:,} bytes" if number in self.sent else "") for number in sorted(self.calls)),
            self.verdict()])

    def verdict(self) -> str:
        """Whether the losses are one process's, in words."""
        n = len(self.losses)
        if self.lies_on_one_process:
            return f"the losses of {n} steps lie on one process's, to {ALLOWED:g} of the loss"
        at = next(step for step, difference in enumerate(self.differences) if difference > ALLOWED)
        return (f"the losses leave one process's at step {at} of {n}: one of your parts passes its check and does "
                "something else in training. Leave them out one by one: --without 5.5")


# python -m course_lib.train --mine workspace/exercises

OPTIONS = {"mine", "without", "layout", "order", "schedule", "micro_batches", "device", "steps", "batch_size", "text",
           "learning_rate", "seed", "layers", "hidden_size", "heads", "sequence_length"}


def run_command(arguments: Namespace, default_of: Callable[[str], Any], layout: ParallelLayout, config: GPTConfig
                ) -> None:
    """Prints which answers there are, the losses, and the outcome. arguments: of course_lib.train.

    ValueError for options that this loop does not know; SystemExit where a rank fails, with the line that failed.
    """
    others = [f"--{name.replace('_', '-')}" for name, value in vars(arguments).items()
              if name not in OPTIONS and value != default_of(name)]
    if others or context.under_torchrun():
        raise ValueError(f"--mine {' '.join(others) or 'under torchrun'}: the loop with your functions has ranks of "
                         "its own, 64 bits and no such option. Expected the command without it, or without --mine")
    print("checking each of your answers once", file=sys.stderr)
    try:
        answers = find(arguments.mine, arguments.without)
        print(answers, flush=True)
        print(run(answers, layout, arguments.steps, config, num_microbatches=arguments.micro_batches,
                  schedule=arguments.schedule, batch_size=arguments.batch_size, seed=arguments.seed, verbose=True,
                  learning_rate=arguments.learning_rate or 1e-3,
                  tokens=load_text(arguments.text, config.sequence_length) if arguments.text else None), flush=True)
    except LaunchError as error:
        raise SystemExit(str(error)) from error
