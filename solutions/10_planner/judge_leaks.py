"""Exercise 10.6: which test rows of a table leak into what was fitted.

    seen by a row   rows that constants were fitted on, and those that the profile of its software was made from
    it leaks        if one of them stands in the same document, or is the same run

A document is what an address names without `@version` and `#place`; a run is the same where all that was set is the
same, whoever measured it and in whatever metric. Tables are made of rows of course_lib.facts: their sources are written
as each document might be cited, some runs are told twice, some profiles made by hand from test rows; and of each there
is a likeness that is no leak.
"""

import random
from typing import Any

from course_lib.facts import published_rows
from course_lib.grading.compare import describe, is_list_of
from course_lib.grading.exercise import Exercise, SentBytes, Trial
from course_lib.grading.on_rank import values
from course_lib.grading.spent import Spent

SET = ("hw", "layers", "hidden", "seq", "gpus", "tp", "cp", "pp", "dp", "v", "mbs", "gbs", "zero", "recompute")
# Made up, and near each other: whoever compares the first letters, or the last ones, takes two for one.
DOCUMENTS = ("github.com/lab/train/README.md", "github.com/lab/train/docs/README.md", "github.com/lab/train2/README.md",
             "arxiv.org/abs/2600.04473", "arxiv.org/abs/2600.0447", "arxiv.org/abs/2600.21783",
             "lab.org/blog/scaling", "lab.org/blog/scaling-2", "bench.net/performance.md", "bench.net/memory.md")
ENDS = ("", "@8c8dd48", "@v2", "#table-1", "#table-4", "@3faaa1a#h100")
METRICS = (("step time s", 7.31), ("tokens/s per GPU", 5593.0), ("model TFLOP/s per GPU", 412.0))
Row = dict[str, Any]
Profiles = dict[str, list[str]]


class FindLeaks(Exercise):
    number = "10.6"
    budget = "every test row that leaks, and no other"
    run = staticmethod(values)
    # document, run, profile: whether tables have such leaks
    kinds = ((False, False, False), (True, False, False), (False, True, False), (False, False, True),
             (True, True, True))

    def trials(self, seed: int) -> list[Trial]:
        tables = [(kinds, 0) for kinds in self.kinds] + [((True, True, True), 100 + seed)]
        return [Trial([list(example())], "the example, six rows"),
                *(drawn_trial(kinds, number) for kinds, number in tables)]

    def arguments(self, trial: Trial) -> list[Any]:
        return trial.inputs[0]

    def select_parts(self, answers: list[Any]) -> Any:
        """The ids in the order of their names, as any order is right."""
        return sorted(answers[0]) if is_list_of(answers[0], str) else answers[0]

    def solve(self, rows: list[Row], profiles: Profiles) -> list[str]:
        return sorted(row["id"] for row in rows if row["split"] == "test" and seen_of(row, rows, profiles))

    def wrong(self, trial: Trial, answers: list[Any]) -> str | None:
        given, (rows, profiles) = self.select_parts(answers), trial.inputs[0]
        by_name, right = {row["id"]: row for row in rows}, self.solve(rows, profiles)
        if not is_list_of(given, str):
            return f"it returned {describe(answers[0])}: expected a list of the ids of test rows"
        if len(set(given)) < len(given):
            return "it returned an id twice: expected each row once"
        for name in given:
            if name not in by_name or by_name[name]["split"] != "test":
                return f"it returned {name[:40]!r}: expected ids of test rows"
            if name not in right:
                return f"{name} is said to leak and does not" + near_miss(by_name[name], rows, profiles)
        missed = next((name for name in right if name not in given), None)
        return None if missed is None else f"{missed} leaks: {why(by_name[missed], rows, profiles)}"

    def usage(self, trial: Trial, answers: list[Any], traffic: SentBytes) -> list[Spent]:
        return [Spent("found", len(answers[0]), len(self.solve(*trial.inputs[0])), "leak", limit="of {}")]


def document_of(row: Row) -> str:
    return row["source"].partition("#")[0].partition("@")[0]


def same_run(one: Row, other: Row) -> bool:
    return all(one[name] == other[name] for name in SET)


def known_to(row: Row, rows: list[Row], profiles: Profiles) -> list[Row]:
    """The rows from which the planner was made that predicts this one: fitted rows, and those of its profile."""
    return [each for each in rows if each["split"] == "fitted" or each["id"] in profiles[row["software"]]]


def seen_of(row: Row, rows: list[Row], profiles: Profiles) -> list[Row]:
    return [each for each in known_to(row, rows, profiles)
            if document_of(each) == document_of(row) or same_run(each, row)]


def why(row: Row, rows: list[Row], profiles: Profiles) -> str:
    seen = seen_of(row, rows, profiles)[0]
    how = "on which constants were fitted" if seen["split"] == "fitted" else (
        f"from which the profile {row['software']!r} was made")
    if seen is row:
        return f"it is one of the rows {how}"
    if document_of(seen) == document_of(row):
        return f"its document is that of {seen['id']}, {how}"
    return f"it is the same run as {seen['id']}, {how}"


def near_miss(row: Row, rows: list[Row], profiles: Profiles) -> str:
    """Why a reader may have taken the row for a leak, as the end of a sentence."""
    others = [each for each in rows if each is not row]
    if any(row["id"] in made_from for made_from in profiles.values()):
        return ": a profile was made from it, but not that of its own software"
    if any(document_of(each) == document_of(row) or same_run(each, row) for each in others):
        return ": it is like another test row, and that was not fitted"
    if any(sum(each[name] != row[name] for name in SET) == 1 for each in others):
        return ": another run differs from it in something that was set"
    return ": neither its document nor its run has been seen"


# Tables

def made_row(name: str, of: Row, source: str, split: str, software: str, metric: int = 0) -> Row:
    words, value = METRICS[metric]
    return {"id": name, "source": source, "split": split, "software": software, **{key: of[key] for key in SET},
            "metric": words, "value": value}


def example() -> tuple[list[Row], Profiles]:
    """To follow by hand: a document, a run and a profile that leak, and a row that does not."""
    base = dict(zip(SET, ("H100", 32, 4096, 8192, 64, 2, 1, 1, 32, 1, 1, 256, 1, "none")))
    rows = (("a", {}, "x.org/paper#table-1", "fitted", "plain", 0), ("b", {"pp": 2, "dp": 16}, "x.org/paper@v2", "test",
            "plain", 0), ("c", {}, "y.org/blog", "test", "plain", 1), ("d", {"mbs": 2}, "y.org/blog#again", "test",
            "plain", 0), ("e", {"mbs": 4}, "z.org/bench", "test", "tuned", 0),
            ("f", {"mbs": 8}, "z.org/bench@1", "test", "plain", 0))
    return [made_row(name, base | change, *rest) for name, change, *rest in rows], {"plain": [], "tuned": ["f"]}


def drawn_trial(kinds: tuple[bool, bool, bool], seed: int) -> Trial:
    """A table with leaks of these kinds, and with what looks like each."""
    source = random.Random(f"{kinds} {seed}")
    rows, profiles = honest_table(source)
    for has, leak in zip(kinds, (leak_by_document, leak_by_run, leak_by_profile)):
        for _ in range(2 * has):
            leak(rows, profiles, source)
    source.shuffle(rows)
    names = source.sample(range(100, 1000), len(rows))
    new = {row["id"]: f"r{name}" for row, name in zip(rows, names)}
    table = [row | {"id": new[row["id"]]} for row in rows]
    made = {software: [new[name] for name in made_from] for software, made_from in profiles.items()}
    return Trial([[table, made]], f"{len(table)} rows, {len(made)} profiles")


def honest_table(source: random.Random) -> tuple[list[Row], Profiles]:
    """No test row leaks, though some are like other test rows, or like fitted ones but for one thing that was set."""
    runs = source.sample(distinct_runs(), 16)
    documents = source.sample(DOCUMENTS, len(DOCUMENTS))
    fitted, test = ([made_row(f"{first + place}", run, source.choice(of) + source.choice(ENDS), split,
                              source.choice(("plain", "tuned", "fsdp")), source.randrange(3))
                     for place, run in enumerate(its)]
                    for first, split, its, of in ((0, "fitted", runs[:6], documents[:3]),
                                                  (6, "test", runs[6:], documents[3:])))
    rows = fitted + test
    # a fitted run with another micro-batch; a test run that another document tells as well
    rows.append(made_row("16", fitted[0] | {"mbs": 2 * fitted[0]["mbs"]}, test[0]["source"], "test", "plain", 1))
    rows.append(made_row("17", test[1], test[2]["source"], "test", "fsdp", 2))
    # a profile made from a test row that is not said with it
    rows.append(made_row("18", test[3], "z.org/own" + source.choice(ENDS), "test", "plain"))
    return rows, {"plain": [], "fsdp": [fitted[2]["id"]], "tuned": [fitted[1]["id"]], "own": ["18"]}


def distinct_runs() -> list[Row]:
    """Published rows of which no two are the same run."""
    found: dict[tuple, Row] = {}
    for row in published_rows():
        found.setdefault(tuple(row[name] for name in SET), row)
    return list(found.values())


def leak_by_document(rows: list[Row], profiles: Profiles, source: random.Random) -> None:
    """A new run of a document that was fitted on, cited in another way."""
    fitted = source.choice([row for row in rows if row["split"] == "fitted"])
    fresh = source.choice(distinct_runs()) | {"gbs": 1000 + len(rows)}
    end = source.choice([end for end in ENDS if document_of(fitted) + end != fitted["source"]])
    rows.append(made_row(f"{len(rows)}", fresh, document_of(fitted) + end, "test", "plain"))


def leak_by_run(rows: list[Row], profiles: Profiles, source: random.Random) -> None:
    """A fitted run, told in another document and metric."""
    fitted = source.choice([row for row in rows if row["split"] == "fitted"])
    metric = next(place for place, (words, _) in enumerate(METRICS) if words != fitted["metric"])
    rows.append(made_row(f"{len(rows)}", fitted, f"blog.org/{len(rows)}" + source.choice(ENDS), "test",
                         source.choice(("plain", "fsdp")), metric))


def leak_by_profile(rows: list[Row], profiles: Profiles, source: random.Random) -> None:
    """A row that is said with a profile made from it, or from another row of its document."""
    place, software = len(rows), f"by hand {len(rows)}"
    runs = [source.choice(distinct_runs()) | {"gbs": 1000 + place + more} for more in range(2)]
    for more, run in enumerate(runs):
        rows.append(made_row(f"{place + more}", run, f"hand.org/{place}" + source.choice(ENDS), "test", software))
    profiles[software] = [f"{place}"]
