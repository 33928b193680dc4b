"""The contradiction of headlines itself: true ones pass, and each way in which one is no assertion is found."""

import json
from dataclasses import dataclass

import pytest
from nbformat.v4 import new_output

from course_lib.runtime.instruments.timeline import Timeline
from course_lib.runtime.instruments.timeline_events import TimelineEvent
from course_lib.runtime.launcher import Results
from course_lib.widgets import Chart, RankPanels
from tests.claims.cell import DOES_NOT_HOLD
from tests.claims.compare import faults
from tests.claims.contradict import verdicts

DATA = "years, other = [1, 2, 3], (1, 2)\nlosses = [3.0, 2.0, 1.0]\n"
CHART = 'Chart("Losses fall", "year", "loss", points={"loss": (years, losses)}, holds=losses[-1] < losses[0])'


def only_verdict(source: str, **namespace) -> dict[str, str]:
    namespace |= {"Chart": Chart, "__name__": "__main__"}
    exec(source, namespace)
    before = dict(namespace)
    (found,) = json.loads(verdicts(source, namespace))
    assert namespace == before
    return found


@pytest.mark.parametrize("cell", [CHART, f"print({CHART})", f"picture = {CHART}", "gap = losses[0] - losses[-1]\n"
                                  + CHART.replace("losses[-1] < losses[0]", "gap > 0")])
def test_a_headline_gives_way_to_data_that_contradict_it(cell):
    found = only_verdict(DATA + cell)
    assert found["fault"] == ""
    assert found["said"] == "Chart: Losses fall (loss over year: loss)"
    assert found["contradicted"] == "Chart: not seen here: Losses fall (loss over year: loss)"


def test_so_does_a_timelines_also_where_its_condition_is_computed_before():
    def log():
        return Timeline((0, 1), [TimelineEvent(rank, "compute", "work", float(rank), rank + 0.4) for rank in range(2)])

    source = ("late = run.timeline.total_s(lane='compute') < run.timeline.duration_s\n"
              "run.timeline.shows('Between the two nobody works', holds=late)")
    found = only_verdict(source, run=Results([None, None], [[log()], []]))
    assert found["fault"] == ""
    assert found["contradicted"].startswith("Timeline of 2 ranks: not seen here: Between the two nobody works")


def test_so_do_panels_of_ranks_and_those_of_a_run_that_goes_on_have_none():
    source = ("ill = RankPanels.so_far(figures).figures['loss'][-1].index(2.0)\n"
              "RankPanels('Rank 1 reads noise', figures, holds=ill == 1)")
    found = only_verdict(source, RankPanels=RankPanels, figures={"loss": [[1.0, 2.0], [1.0, 2.0]]})
    assert found["fault"] == ""
    assert found["contradicted"] == "RankPanels: not seen here: Rank 1 reads noise (loss)"


@dataclass(frozen=True)
class Gpu:
    gb: float

    def __post_init__(self):
        if self.gb <= 0:
            raise ValueError("expected more than 0")


def test_numbers_inside_facts_are_changed_too_where_the_facts_allow_it():
    source = ('Chart("None has 100 GB", "year", "GB", points={"GPU": (years, [gpu.gb for gpu in gpus])}, '
              'holds=max(gpu.gb for gpu in gpus) < 100)')
    found = only_verdict(source, years=[1, 2], gpus=[Gpu(40.0), Gpu(80.0)])
    assert (found["fault"], found["by"]) == ("", "gpus: a thousand times as much")


@pytest.mark.parametrize("changed, fault", [
    (CHART.replace(", holds=losses[-1] < losses[0]", ""), "no holds="),
    (CHART.replace("losses[-1] < losses[0]", "True"), "holds=True, whatever the data say"),
    (CHART.replace("losses[-1] < losses[0]", "losses[0]"), "holds=3.0: expected True or False"),
    (CHART.replace("losses[-1] < losses[0]", "losses[-1] > losses[0]"), "does not hold here"),
    (CHART.replace("losses[-1] < losses[0]", "other[0] < other[1]"), "holds= asks nothing of what is drawn"),
    (CHART.replace("losses[-1] < losses[0]", "len(losses) < 4"), "says the same over "),
    (CHART.replace("(years, losses)", "(launch(), losses)"), "launches in the picture's own call"),
    (f"def draw():\n    return {CHART}\ndraw()", "drawn in a function or a loop"),
    (f"for _ in years:\n    {CHART}", "drawn in a function or a loop"),
    (f"[{CHART} for _ in years]", "drawn in a function or a loop"),
])
def test_each_way_in_which_a_headline_asserts_nothing_is_found(changed, fault):
    assert only_verdict(DATA + changed, launch=lambda: [1, 2, 3])["fault"].startswith(fault)


SAID = "Chart: Losses fall (loss over year: loss)"
NOT_SEEN = SAID.replace("Chart: ", "Chart: not seen here: ")
TIMELINE = "Timeline of rank 0: 1 spans (1 work); 0 communication calls"


@pytest.mark.parametrize("verdict, stored, words", [
    ({"said": SAID, "contradicted": NOT_SEEN}, SAID, ""),
    ({"said": SAID, "contradicted": NOT_SEEN}, None, "is not in the cell's output"),
    ({"said": SAID, "contradicted": SAID}, SAID, "for the same"),
    ({"said": SAID, "fault": "says the same over 9 other data"}, SAID, "says the same over 9 other data"),
    ({"said": NOT_SEEN, "fault": DOES_NOT_HOLD}, SAID, ""),  # the cell's own comparison says so
    ({"said": NOT_SEEN, "fault": DOES_NOT_HOLD}, NOT_SEEN, DOES_NOT_HOLD),
    (None, TIMELINE, "no headline of the cell's own: .shows(..., holds=...)"),
    (None, "of rank 0", ""),
])
def test_what_is_stored_shows_every_headline_and_would_differ_where_it_gives_way(verdict, stored, words):
    found = [{"source": "Chart(", "fault": "", "contradicted": "", **verdict}] if verdict else []
    told = faults(found, [new_output("execute_result", {"text/plain": stored})] if stored else [])
    assert words in told and bool(words) == bool(told)
