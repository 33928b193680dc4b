"""The table of each chapter's answers, and whether every one is judged as its row says.

    @wrong("2.1", "every half ends one rank before its home: what travels right starts with chunk r-1")
    def starts_with_its_own_chunk(tensor): ...

    DAYS = [wrong("1.2", "these are hours: a day has 24")(lambda *asked: 24 * my_training_days(*asked)), ...]

    @right("2.4", "halves the ranks that are left, the nearest first")
    def nearest_first(tensor, dst): ...

    TEXT_4_8 = [term("4.8", "min(p, m) micro-batches in flight", "min(p, m)", "p"), ...
                example("4.8", lambda inputs, answers: f"sizes_bytes = {inputs[0][0]}, ... -> {answers[0]}")]

are rows, in answers.py beside the solutions' notebook. A wrong answer is refused and told its sentence; a right one
that is unusual passes; the solution without a term that its text stresses is refused; the docstring has what the
example makes of the first trial's inputs by rank, and of what the solution answers there.

tools/exercises.py does with them what an author needs.
"""

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
from course_lib.grading.recorded import Seen
from course_lib.grading.registry import exercise, exercises_in, exercises_of
from course_lib.grading.report import Verdict
from course_lib.grading.selfstudy import Attempts, check_exercise, examine, judgement, on_new_ranks
from tools.solutions import SOLUTIONS, exercises, hints, names_of, solution_cell, work

LEAST = {"solution": 1, "wrong": 3, "right": 2, "term": 2, "example": 1}  # kinds, and how many an exercise needs


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


def example(number: str, makes: Callable) -> Row:
    return Row(number, "example", "", makes, name="in the docstring")


@cache
def table(path: Path) -> dict[str, list[Row]]:
    """By exercise the rows beside the notebook at `path`, in whose names they run. ValueError where any is missing."""
    names = names_of(path)
    rows = [Row(each.number, "solution", "", names[each.function], name=each.function)
            for each in exercises_of(int(path.name[:2]))]
    found = runpy.run_path(str(path.with_name("answers.py")),
                           {name: value for name, value in names.items() if name[:2] != "__"})
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
    text = text_of({"exercises": exercises(path), "work": work(path), "hints": hints(path), "mistakes": mistakes})
    path.with_name("recorded.json").write_text(text, encoding="utf-8")
    recorded.of_folder.cache_clear()
    exercises_in.cache_clear()


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
