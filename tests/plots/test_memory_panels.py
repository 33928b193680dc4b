"""Recordings beside each other say what they show, draw all of it, and refuse what is not there."""

from dataclasses import replace

import pytest
import torch

from course_lib.runtime import MemoryLog, record_memory
from course_lib.widgets import MemoryPanels
from tests.widgets.pictures import size_and_colours


@pytest.fixture
def log():
    model = torch.nn.Linear(100, 100)
    with record_memory(model=model) as recorded:
        model(torch.ones(4, 100)).sum().backward()
    return recorded


def test_the_panels_are_one_png_and_one_stable_sentence(log):
    two = MemoryPanels("half of it", {"whole": log, "half": log}, predicted={"half": 20_000.0})
    bundle = two._repr_mimebundle_()
    assert bundle["text/plain"] == "MemoryPanels: half of it (whole, half)"
    (width, one_row), colours = size_and_colours(bundle["image/png"])
    assert width > 900 and colours > 6
    (_, two_rows), _ = size_and_colours(MemoryPanels("thirds", dict.fromkeys("abc", log)).png())
    assert two_rows > one_row


def test_a_headline_that_the_recordings_contradict_says_so(log):
    panels = [MemoryPanels("all of it", {"whole": log}, holds=holds) for holds in (log.peak > 0, log.peak < 0)]
    assert [panel.finding() for panel in panels] == ["MemoryPanels: all of it (whole)",
                                                     "MemoryPanels: not seen here: all of it (whole)"]
    assert panels[0].png() != panels[1].png()


def test_of_several_ranks_the_fullest_is_drawn(log):
    small, large = replace(log.tracks[0], rank=0, changes=log.tracks[0].changes[:1]), replace(log.tracks[0], rank=1)
    assert MemoryPanels("two ranks", {"run": MemoryLog((0, 1), (small, large))}).fullest_tracks() == {"run": large}


@pytest.mark.parametrize("logs, predicted, complaint", [
    ({}, {}, "no log: expected recordings"), ({"empty": MemoryLog((), ())}, {}, "empty: expected recordings"),
    (None, {"other": 1.0}, "predictions of other"),
])
def test_what_cannot_be_drawn_is_refused(log, logs, predicted, complaint):
    with pytest.raises(ValueError, match=complaint):
        MemoryPanels("nothing", {"run": log} if logs is None else logs, predicted)
