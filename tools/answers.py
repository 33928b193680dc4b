"""The table of each chapter's answers, and whether every one is judged as its row says.

    @wrong("2.1", "every half ends one rank before its home: what travels right starts with chunk r-1")
    def starts_with_its_own_chunk(tensor): ...

    DAYS = [wrong("1.2", "these are hours: a day has 24")(lambda *asked: 24 * my_training_days(*asked)), ...]

    @right("2.4", "halves the ranks that are left, the nearest first")
    def nearest_first(tensor, dst): ...

    TERMS = [term("4.8", "min(p, m) micro-batches in flight", "min(p, m)", "p"), ...]
    EXAMPLES = {"3.2": lambda inputs, answers: f"sizes_bytes = {inputs[0][0]}, ... -> {answers[0]}"}

are rows, in whatever file beside the solutions' notebook. A wrong answer is refused and told its sentence; a right one
that is unusual passes; the solution without a term that its text stresses is refused; the docstring has what the
example makes of the first trial's inputs by rank, and of what the solution answers there.

    python -m tools.answers record [02_collectives ...]     `make mistakes`: what judges/recorded/NN.json has
    python -m tools.answers terms                           writes docs/teaching/terms.md, of all chapters
    python -m tools.answers mutants [02_collectives ...]    mutants.py: small changes of solutions that still pass
"""

import argparse
import io
import json
import runpy
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from course_lib.grading import recorded
from course_lib.grading.exercise import SEED, Exercise
from course_lib.grading.recorded import FOLDER, Seen
from course_lib.grading.registry import exercise, exercises_of
from course_lib.grading.report import Verdict
from course_lib.grading.selfstudy import Attempts, check_exercise, examine, judgement, on_new_ranks
from course_lib.grading.staying import StayingAttempts
from tools.mutants import survivors
from tools.solutions import ROOT, SOLUTIONS, exercises, hints, names_of, solution_cell, work

LEAST = {"solution": 1, "wrong": 3, "right": 2, "term": 2, "example": 1}  # kinds, and how many an exercise needs
PAGE = ROOT / "docs" / "teaching" / "terms.md"
HEAD = """# What each check decides

Written by `python -m tools.answers terms`. A line has one thing that the text of an exercise stresses, and the first
trial that refuses a solution which leaves it out. The trials are those of self-study; in a class the drawn ones are
others, and the rest are the same.
"""


@dataclass(frozen=True)
class Row:
    """One row of a chapter's table.

    says: of a wrong answer the cause in a sentence, or words that the check says of it by itself, as of an error or an
    excess; of a right one what is unusual; of a term what the text stresses.
    """

    number: str
    kind: str
    says: str
    function: Callable | None = None
    edit: tuple[str, str] = ("", "")  # a term's: what stands for it in the solution's cell, and what without it
    name: str = ""  # under which it stands in its file

    def __str__(self) -> str:
        return f"{self.number} {self.kind} {self.name}"


def answer(kind: str, number: str, says: str) -> Callable[[Callable], Row]:
    def decorate(function: Callable) -> Row:
        function.__name__ = exercise(number).function
        return Row(number, kind, says, function)

    return decorate


wrong = partial(answer, "wrong")  # decorates a wrong answer to an exercise
right = partial(answer, "right")  # one that nobody would think of first, and that has to pass


def term(number: str, words: str, stands: str, without: str) -> Row:
    return Row(number, "term", words, edit=(stands, without), name=words)


@cache
def table(path: Path) -> dict[str, list[Row]]:
    """By exercise the rows beside the notebook at `path`, in whose names they run. ValueError where any is missing."""
    names = names_of(path)
    rows = [Row(each.number, "solution", "", names[each.function], name=each.function)
            for each in exercises_of(int(path.name[:2]))]
    for file in sorted(path.parent.glob("*.py")):
        found = runpy.run_path(str(file), {name: value for name, value in names.items() if name[:2] != "__"})
        rows += [without(path, row) if row.kind == "term" else row for row in rows_among(found)]
    by_number: dict[str, list[Row]] = {row.number: [] for row in rows if row.kind == "solution"}
    for row in rows:
        by_number[row.number].append(row)
    for number, own in by_number.items():
        counts = Counter(row.kind for row in own)
        for kind, least in LEAST.items():
            if counts[kind] < least:
                raise ValueError(f"{path.parent.name}, {number}: {counts[kind]} rows of the kind {kind}, expected "
                                 f"{least} or more")
        if twice := [str(row) for row, times in Counter(map(str, own)).items() if times > 1]:
            raise ValueError(f"{path.parent.name}: two rows are named {twice[0]}")
    return by_number


def rows_among(found: dict[str, Any]) -> Iterator[Row]:
    """All rows among the names of a file, then those in its lists, with the name that says what they do."""
    yield from (replace(value, name=name) for name, value in found.items() if isinstance(value, Row))
    for name, value in found.items():
        if isinstance(value, list):
            yield from (replace(each, name=each.name or f"{name}[{place}]") for place, each in enumerate(value)
                        if isinstance(each, Row))
    yield from (Row(number, "example", "", function) for number, function in found.get("EXAMPLES", {}).items())


def without(path: Path, row: Row) -> Row:
    """The row of a term with the solution that leaves it out. ValueError where the solution does not have it."""
    function, source = exercise(row.number).function, solution_cell(path, row.number)
    if row.edit[0] not in source:
        raise ValueError(f"{path.parent.name}, {row}: {row.edit[0]!r} is not in the solution's cell")
    names = dict(names_of(path))
    exec(compile(source.replace(*row.edit), f"{row.number} without {row.says}", "exec"), names)
    return replace(row, function=names[function])


def rows(path: Path, kind: str = "", number: str = "") -> list[Row]:
    """Those of the table beside the notebook at `path`, of one kind or of all, of one exercise or of all."""
    return [row for own in table(path).values() for row in own if kind in ("", row.kind) and number in ("", row.number)]


# How they are judged


Judged = Callable[[Row, int], tuple[Verdict, str | None]]  # row, seed -> verdict, cause; None: it was not looked for


def misjudged(row: Row, judged: Judged, seed: int = SEED) -> str:
    """What is wrong with the verdict on a row, in words; "" where it is as it should be."""
    verdict, cause = judged(row, seed)
    if row.kind in ("wrong", "term"):
        if verdict not in (Verdict.WRONG, Verdict.COSTLY):
            return f"{row}: {verdict.value[0]} at seed {seed}"
        is_told = row.kind == "term" or cause is None or row.says in cause
        return "" if is_told else f"{row}: expected {row.says!r}, is told {cause!r}"
    return "" if verdict is Verdict.CORRECT else f"{row}: refused at seed {seed}: {cause}"


def at_home(attempts: Attempts = on_new_ranks) -> Judged:
    """As `check` judges, on new ranks for each trial, or by other `attempts`."""

    def judged(row: Row, seed: int) -> tuple[Verdict, str | None]:
        asked = exercise(row.number)
        if row.kind == "example":
            missing = missing_words(asked, row, attempts, seed)
            return (Verdict.WRONG, f"the docstring does not say {missing}") if missing else (Verdict.CORRECT, "")
        if row.kind == "wrong" and seed == SEED:  # the seed of the trials that causes are known on
            report = check_exercise(asked, row.function, attempts=attempts)
            return report.verdict, report.cause
        found = examine(asked, row.function, seed, attempts)
        return found.verdict, None if row.kind == "wrong" else found.cause

    return judged


def missing_words(asked: Exercise, row: Row, attempts: Attempts, seed: int) -> list[str]:
    """What the example makes of the first trial, and the docstring does not have, whatever its spaces and line breaks.
    """
    solution = names_of(SOLUTIONS[int(row.number.partition(".")[0])])[asked.function]
    trial = asked.trials(seed)[0]
    answers = [torch.load(io.BytesIO(data), weights_only=True) for _, data, _ in attempts(asked, solution, trial)]
    said = row.function(trial.inputs, answers)
    docstring = " ".join(solution.__doc__.split())
    return [line for line in ([said] if isinstance(said, str) else said) if " ".join(line.split()) not in docstring]


def passes(path: Path, number: str, stands: str, instead: str, attempts: Attempts) -> bool:
    """Whether the solution to an exercise is right with `instead` in the place of what `stands` there."""
    return at_home(attempts)(without(path, Row(number, "mutant", instead, edit=(stands, instead))),
                             SEED)[0] is Verdict.CORRECT


# What is written of them


def record(path: Path, attempts: Attempts) -> Iterator[str]:
    """Write what check and TrustedGrade know of a chapter: hints, and of each wrong answer its sentence and what it
    gives on the first trials that it fails. Where the judge says the sentence by itself, nothing needs recording. A
    line for what cannot be told.
    """
    chapter = int(path.name[:2])
    write(path, recorded.of_chapter(chapter)["mistakes"])  # new exercises are known from here on
    lines: dict[str, list[dict[str, Any]]] = {}
    for row in tqdm(rows(path, "wrong"), desc=path.stem, unit="answer", disable=None):
        asked = exercise(row.number)
        found = examine(asked, row.function, attempts=attempts)
        if row.says in found.cause:
            continue
        if not found.judged or not found.judged.fault:
            yield f"{row} passes, or gives nothing that could be known again: {found.cause or found.verdict.value[0]}"
            continue
        seen = [Seen.of(found.trial, found.judged)]
        for place, trial in enumerate(asked.trials(SEED)):
            if place > found.trial and len(seen) < recorded.MAX_SEEN:
                later = judgement(asked, row.function, trial, attempts)
                seen += [Seen.of(place, later)] if later else []
        lines.setdefault(row.number, []).append({"name": row.name, "says": row.says, "seen": [
            [each.trial, each.over, each.sketch.form, list(each.sketch.numbers), each.sketch.scale] for each in seen]})
    write(path, lines)


def write(path: Path, mistakes: dict[str, Any]) -> None:
    """The file of the notebook at `path`, with these lines for mistakes."""
    file = FOLDER / f"{path.name[:2]}.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(text_of({"exercises": exercises(path), "work": work(path), "hints": hints(path),
                             "mistakes": mistakes}), encoding="utf-8")
    recorded.of_chapter.cache_clear()
    exercises_of.cache_clear()


def text_of(chapter: dict[str, Any]) -> str:
    """JSON with a line for each hint and each mistake, so that a change of one is a change of a line."""
    parts = [f' "{kind}": {json.dumps(chapter[kind])}' for kind in ("exercises", "work")]
    for kind in ("hints", "mistakes"):
        entries = []
        for number, own in chapter[kind].items():
            lines = ",\n   ".join(json.dumps(each, ensure_ascii=False) for each in own)
            entries.append(f"  {json.dumps(number)}: [\n   {lines}\n  ]")
        parts.append(f' {json.dumps(kind)}: {{\n' + ",\n".join(entries) + "\n }")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def terms_page(trial_of: Callable[[Row], str]) -> str:
    """The page for teachers: of each term the trial that refuses the solution without it."""
    lines = []
    for path in SOLUTIONS.values():
        for number, own in table(path).items():
            lines += [f"\n## {number} {exercise(number).function}\n", "| what the text stresses | trial |", "|---|---|"]
            lines += [f"| {row.says.replace('|', chr(92) + '|')} | {trial_of(row)} |" for row in own
                      if row.kind == "term"]
    return HEAD + "\n".join(lines) + "\n"


def deciding(row: Row, attempts: Attempts) -> str:
    """The label of the trial that refuses the row."""
    asked = exercise(row.number)
    found = examine(asked, row.function, attempts=attempts)
    return "PASSES" if found.verdict is Verdict.CORRECT else asked.trials(SEED)[found.trial].label


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = {path.stem: path for path in SOLUTIONS.values()}
    parser.add_argument("what", choices=("record", "terms", "mutants"))
    parser.add_argument("names", nargs="*", metavar="NAME", help="chapters, such as 02_collectives; all by default")
    parser.add_argument("--only", default="", metavar="NUMBER", help="mutants of one exercise, such as 2.3")
    parser.add_argument("--at-most", type=int, default=25, help="mutants of an exercise")
    asked = parser.parse_args()
    if strange := set(asked.names) - known.keys():
        parser.error(f"{', '.join(sorted(strange))}: expected some of {', '.join(known)}")
    with StayingAttempts() as attempts:
        if asked.what == "terms":
            PAGE.write_text(terms_page(lambda row: deciding(row, attempts)), encoding="utf-8")
            return
        ways = {"record": lambda path: record(path, attempts),
                "mutants": lambda path: survivors(path, asked.only, asked.at_most,
                                                  lambda *edit: passes(path, *edit, attempts))}
        for name in asked.names or known:
            for line in ways[asked.what](known[name]):
                print(line, flush=True)


if __name__ == "__main__":
    from tools import answers  # the module whose rows the files beside the notebooks make

    answers.main()
