"""Where a machine allows no namespaces, notebooks draw times that the authors recorded, and call them so."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest

from course_lib import facts
from course_lib.costs.links import Link
from course_lib.runtime import HostsUnavailable
from course_lib.widgets import Chart

ROOT = Path(__file__).resolve().parent.parent
RECORDED = "recorded on the authors' machine"
STEP = SimpleNamespace(losses=[5.0], bytes_by_axis={"dp": 1e6, "tp": 1e6})  # of HybridTrainer, on one host
OF_CELL = {
    "05_tensor_parallel": ({"ACROSS": ""}, facts.CUT_MLP_TIMES),
    "09_hybrid_parallel": ({"TWO_HOSTS": "", "math": math, "torch": SimpleNamespace(manual_seed=lambda _: None),
                            "GPT": lambda _: None, "GPTConfig": lambda **_: None, "launch": lambda _: [STEP]},
                           facts.TWO_HOST_STEP_TIMES),
}


def sources() -> dict[str, str]:
    """Of the cells that do without namespaces, by notebook."""
    cells = [(path.stem, "".join(cell["source"])) for path in sorted((ROOT / "notebooks").glob("*.ipynb"))
             for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]]
    return {name: source for name, source in cells if "except HostsUnavailable" in source}


def chart(name: str, times: str | None) -> Chart:
    """What the cell draws where the two hosts print `times`; None: where there can be no slow cable."""
    def on_hosts(script: str, bytes_per_s: float | None = None) -> SimpleNamespace:
        if bytes_per_s is not None and times is None:
            raise HostsUnavailable("no namespaces")
        return SimpleNamespace(stdout=times or "1 1 1 1 5 5 5 5")

    given, _ = OF_CELL[name]
    before, _, drawn = sources()[name].rpartition("\nChart(")
    namespace = {"facts": facts, "Link": Link, "Chart": Chart, "HostsUnavailable": HostsUnavailable,
                 "on_hosts": on_hosts, **given}
    exec(before, namespace)
    return eval(f"Chart({drawn}", namespace)


@pytest.mark.parametrize("name", OF_CELL)
def test_recorded_times_are_called_recorded_in_headline_legend_and_detail(name):
    drawn, times = chart(name, None), OF_CELL[name][1]
    assert drawn.headline.startswith("Recorded: ")
    assert all(series.endswith(f", {RECORDED}") for series in drawn.points)
    assert times.date in drawn.detail and times.machine in drawn.detail
    assert sorted(y for _, ys in drawn.points.values() for y in ys) == sorted(times.seconds)
    assert "measured" not in drawn.finding() and drawn.png()


@pytest.mark.parametrize("name", OF_CELL)
def test_measured_times_are_called_nothing_else(name):
    drawn = chart(name, "1 2 3 4 5 5 5 5")
    assert "recorded" not in (drawn.finding() + drawn.detail).lower()
