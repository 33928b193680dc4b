"""Record what each wrong answer of solutions/ gives, and its hints: `make mistakes` calls this.

    python -m tools.mistakes [02_collectives ...]

Each wrong answer runs through its exercise on real ranks, as `check` runs a reader's. What it gives on the first trial
that it fails goes, with its sentence, to course_lib/grading/judges/recorded/02.json, from which `check` and
TrustedGrade name the cause. Where the judge already says the sentence by itself, nothing needs recording.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from tqdm import tqdm

from course_lib.grading import recorded
from course_lib.grading.exercise import SEED
from course_lib.grading.recorded import FOLDER, Seen
from course_lib.grading.registry import exercise, exercises_of
from course_lib.grading.selfstudy import examine, judgement
from tools.answers import WrongAnswer
from tools.solutions import SOLUTIONS, exercises, hints, work, wrong_answers


class Untold(Exception):
    """A wrong answer that cannot be told."""


def record(name: str, answer: WrongAnswer) -> dict[str, Any] | None:
    """The line for one wrong answer, None where it needs none. Untold where it passes, or has no results to know."""
    asked = exercise(answer.number)
    found = examine(asked, answer.function)
    if answer.says in found.cause:
        return None
    if not found.judged or not found.judged.fault:
        raise Untold(f"{name}: {found.cause or found.verdict.value[0]}")
    trials = asked.trials(SEED)
    seen = [Seen.of(found.trial, found.judged)]
    for place in range(found.trial + 1, len(trials)):
        if len(seen) < recorded.MAX_SEEN and (judged := judgement(asked, answer.function, trials[place])):
            seen.append(Seen.of(place, judged))
    return {"name": name, "says": answer.says,
            "seen": [[each.trial, each.over, each.sketch.form, list(each.sketch.numbers), each.sketch.scale]
                     for each in seen]}


def record_chapter(path: Path) -> list[str]:
    """Write the file of one chapter. Returns what could not be told."""
    file = FOLDER / f"{path.name[:2]}.json"
    before = recorded.of_chapter(int(path.name[:2]))
    write(file, path, before["mistakes"])  # new exercises are known from here on
    lines: dict[str, list[dict[str, Any]]] = {}
    untold = []
    for name, answer in tqdm(list(wrong_answers(path)), desc=path.stem, unit="answer", disable=None):
        try:
            if line := record(name, answer):
                lines.setdefault(answer.number, []).append(line)
        except Untold as error:
            untold.append(str(error))
    write(file, path, lines)
    return untold


def write(file: Path, path: Path, mistakes: dict[str, Any]) -> None:
    """The file of the notebook at `path`, with these lines for mistakes."""
    file.parent.mkdir(exist_ok=True)
    file.write_text(text_of({"exercises": exercises(path), "work": work(path), "hints": hints(path),
                             "mistakes": mistakes}),
                    encoding="utf-8")
    recorded.of_chapter.cache_clear()
    exercises_of.cache_clear()


def text_of(chapter: dict[str, Any]) -> str:
    """JSON with a line for each hint and each mistake, so that a change of one is a change of a line."""
    parts = [f' "{kind}": {json.dumps(chapter[kind])}' for kind in ("exercises", "work")]
    for kind in ("hints", "mistakes"):
        rows = []
        for number, entries in chapter[kind].items():
            lines = ",\n   ".join(json.dumps(each, ensure_ascii=False) for each in entries)
            rows.append(f"  {json.dumps(number)}: [\n   {lines}\n  ]")
        parts.append(f' {json.dumps(kind)}: {{\n' + ",\n".join(rows) + "\n }")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = {path.stem: path for path in SOLUTIONS.values()}
    parser.add_argument("names", nargs="*", metavar="NAME", help="chapters, such as 02_collectives; all by default")
    names = parser.parse_args().names or list(known)
    if strange := set(names) - known.keys():
        parser.error(f"{', '.join(sorted(strange))}: expected some of {', '.join(known)}")
    untold = [line for name in names for line in record_chapter(known[name])]
    if untold:
        raise SystemExit("These pass, or give nothing that could be known again:\n" + "\n".join(untold))


if __name__ == "__main__":
    main()
