"""Where a machine cannot measure, a notebook draws what was recorded on another one: then the legend says so."""

import ast
import math
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
import torch

from course_lib.reference import GPT, GPTConfig
from course_lib.runtime import HostsUnavailable
from course_lib.widgets import Chart

ROOT = Path(__file__).resolve().parent.parent
RECORDED = "recorded on the authors' machine"
CELLS = {f"{path.stem} {place}": cell.source for path in sorted(ROOT.glob("notebooks/*.ipynb"))
         for place, cell in enumerate(nbformat.read(path, as_version=4).cells)
         if "except HostsUnavailable" in cell.source}
TRAINED = SimpleNamespace(losses=[1.0], bytes_by_axis={"dp": 1e6, "tp": 1e6})


def chart_of(source: str, namespaces: bool) -> Chart:
    """The chart that the cell's last expression is, on a machine with or without `namespaces`."""
    def on_hosts(script, bytes_per_s=None):
        if bytes_per_s and not namespaces:
            raise HostsUnavailable("none here")
        return SimpleNamespace(stdout="0.01 0.02 0.03 0.04 1.0 1.0 1.0 1.0")

    names = {"on_hosts": on_hosts, "HostsUnavailable": HostsUnavailable, "Chart": Chart, "launch": lambda f: [TRAINED],
             "ACROSS": "", "TWO_HOSTS": "", "torch": torch, "math": math, "GPT": GPT, "GPTConfig": GPTConfig}
    *statements, last = ast.parse(source).body
    exec(compile(ast.Module(statements, []), "cell", "exec"), names)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names)


def test_the_cells_that_need_two_hosts_are_known():
    assert [name.partition(" ")[0] for name in CELLS] == ["05_tensor_parallel", "09_hybrid_parallel"]


@pytest.mark.parametrize("cell", CELLS)
def test_recorded_points_are_called_so_and_measured_ones_are_not(cell):
    recorded, measured = (chart_of(CELLS[cell], namespaces) for namespaces in (False, True))
    assert all(RECORDED in name and "measured" not in name for name in recorded.points)
    assert all("measured" in name for name in measured.points) and RECORDED not in str(measured)
    assert RECORDED in str(recorded) and "not seen here" not in str(recorded)
    texts = [text.get_text() for text in recorded.figure().findobj(lambda artist: hasattr(artist, "get_text"))]
    assert len({*recorded.points} & {*texts}) == 2, "the legend has them"
