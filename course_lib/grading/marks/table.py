"""The whole class as a report to read and as a CSV: a mark where everything was judged, else an empty field and why."""

import csv
from collections import Counter
from pathlib import Path
from statistics import mean

from course_lib.grading.marks.standing import CourseFolder, Standing, Status

COLUMNS = ("student", "last_name", "first_name", "email", "mark", "out_of", "points", "late_penalty", "status", "why",
           "note")


def write_csv(course: CourseFolder, name: str, found: list[Standing]) -> Path:
    """Write marks/NAME.csv in the course's folder, a line for each student; its path."""
    numbers = list(dict.fromkeys(each.number for one in found if one.record for each in one.record.exercises))
    path = course.root / "marks" / f"{name}.csv"
    path.parent.mkdir(exist_ok=True)
    with open(path, "w", newline="", encoding="utf-8") as file:
        rows = csv.DictWriter(file, (*COLUMNS, *numbers))
        rows.writeheader()
        rows.writerows(row(each) for each in found)
    return path


def row(standing: Standing) -> dict[str, str]:
    """One student's fields; the exercises' own, as they were judged, by number."""
    judged = {} if standing.record is None or standing.points is None else {
        each.number: f"{each.points:g}" for each in standing.record.exercises}
    return {"student": text(standing.student), "last_name": text(standing.last_name),
            "first_name": text(standing.first_name), "email": text(standing.email), "mark": number(standing.mark),
            "out_of": number(standing.out_of), "points": number(standing.points),
            "late_penalty": number(standing.penalty if standing.points is not None else None),
            "status": standing.status.word, "why": text(standing.why), "note": text("; ".join(notes(standing))),
            **judged}


def number(value: float | None) -> str:
    """Empty for None: what nobody judged is no 0."""
    return "" if value is None else f"{value:g}"


def text(value: str) -> str:
    """On one line, and nothing that a spreadsheet would take for a formula: parts of it come from students."""
    value = " ".join(value.encode(errors="replace").decode().split())
    return f"'{value}" if value.startswith(("=", "+", "-", "@")) else value


def notes(standing: Standing) -> list[str]:
    """What else a teacher should know."""
    return [each for each in (standing.note, ", ".join(standing.remarks)) if each]


def report(name: str, found: list[Standing]) -> str:
    """Who is graded, who is not and why, and which exercises crashed, hung or did not parse."""
    marks = [each.mark for each in found if each.mark is not None]
    counted = Counter(each.status for each in found)
    first = ", ".join(f"{counted[status]} {status.word}" for status in Status if counted[status])
    lines = [f"{name}, {len(found)} student{'s' * (len(found) != 1)}: {first or 'nobody yet'}"]
    if marks:
        lines.append(f"marks from {min(marks):g} to {max(marks):g} of {found[0].out_of:g}, "
                     f"{mean(marks):.1f} on average")
    for status in Status:
        those = [each for each in found if each.status is status]
        if status in (Status.GRADED, Status.NOTHING) or not those:
            continue
        lines.append(f"{status.word}{f' ({status.remedy})' * bool(status.remedy)}:")
        lines += [f"    {text(each.student)}{f': {text(each.why)}' * bool(each.why)}" for each in those]
    if nothing := [each.student for each in found if each.status is Status.NOTHING]:
        lines.append(f"nothing handed in: {', '.join(nothing)}")
    if remarked := [each for each in found if notes(each)]:
        lines.append("perhaps worth a look:")
        lines += [f"    {text(each.student)}: {text('; '.join(notes(each)))}" for each in remarked]
    protections = dict.fromkeys(line for each in found if each.record for line in each.record.missing)
    return "\n".join(lines + [f"graded with less protection: {line}" for line in protections])
