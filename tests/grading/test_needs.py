"""Of other cells a solution gets what it needs, however that has its value, or hears beforehand what it cannot get."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from course_lib.grading import names
from course_lib.grading.names import tell_what_class_lacks
from course_lib.grading.trusted.inside.needs import SHARE
from course_lib.grading.trusted.inside.rank import execute
from course_lib.grading.trusted.inside.student_code import prepare
from course_lib.runtime import context
from tests.grading.class_exercise import HONEST, points

# An expression that is 2 in the solution, and the cells that it takes.
SHAPES = {
    "a call": ("TWO", "TWO = float(2)"),
    "a class that a call makes": ("Sizes(2).w", "from collections import namedtuple\nSizes = namedtuple('S', 'w')"),
    "a comprehension": ("DAYS[1]", "DAYS = {n: 2 * n for n in range(3)}"),
    "a chain of cells": ("C()", "A = int('1')", "B = A + A", "C = lambda: B"),
    "a walrus": ("TWO", "print(TWO := int('2'))"),
    "an annotation": ("TWO", "TWO: float = float('2')"),
    "a loop": ("TABLE[1]", "TABLE = {}\nfor k in range(3):\n    TABLE[k] = 2 * k"),
    "a loop over a library's": ("T[2]", "from tqdm import tqdm\nT = list()\nfor k in tqdm(range(3)):\n    T.append(k)"),
    "a function that fills": ("TABLE[0]", "def fill(table):\n    table.append(2)\nTABLE = []", "fill(TABLE)"),
    "a function's global": ("TWO", "def setup():\n    global TWO\n    TWO = 2", "setup()"),
    "match": ("TWO", "match [2]:\n    case [TWO]: pass"),
    "with": ("TWO", "import torch\nwith torch.no_grad():\n    TWO = 2"),
    "try": ("two()", "try:\n    import nobody_has\nexcept ImportError:\n    nobody_has = None",
            "def two(): return 2 if nobody_has is None else 3"),
    "await": ("TWO", "async def get(): return 2", "TWO = await get()"),
    "a registry": ("TABLE['two']()", "TABLE = dict()\ndef add(f):\n    TABLE[f.__name__] = f\n    return f",
                   "@add\ndef two(): return 2"),
    "a magic around it": ("TWO", "%time TWO = len('ab')\n%matplotlib inline"),
    "%%time": ("TWO", "%%time\nTWO = abs(-2)"),
    "globals": ("TWO", "globals()['TWO'] = 2"),
    "a star": ("gcd(2, 4)", "from math import *"), "an older, failing cell": ("TWO", "TWO = launch(1)", "TWO = int(2)"),
    "beside a return": ("two()", "def two(): return 2\nreturn two()"),
    "annotations of the future": ("two(0)", "from __future__ import annotations", "def two(x: Nowhere): return 2"),
    "a cell of its own below": ("TWO", "TWO = 3", "TWO -= int('1')"),
}
EXPERIMENTS = ("import pandas, matplotlib.pyplot as plt\nresults = launch(f, world_size=4)\nplt.plot(results)",
               "x = f()\nwhile True: pass", "assert False", "losses = [train(n) for n in range(10)]")


def read(own, *above):
    """What a class runs of a notebook in which f is asked for."""
    cells = [{"source": source, "name": f"cell {place}", "own": False} for place, source in enumerate(above)]
    return prepare([*cells, {"source": own, "name": "own", "own": True}], None, "f")


@pytest.fixture
def main(monkeypatch):
    """Whatever is executed as a notebook leaves this process's own __main__ as it is."""
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))


@pytest.mark.parametrize("shape", SHAPES)
def test_a_value_of_another_cell_is_there_and_an_experiment_is_not_run(main, shape):
    expression, *above = SHAPES[shape]
    code = read(f"def f():\n    return {expression}\n", *above, *EXPERIMENTS)
    namespace, failures = execute(code, 20.0)
    assert namespace["f"]() == 2 and not failures
    assert {"plt", "pandas", "results", "x", "losses"}.isdisjoint(namespace)


def test_what_the_own_cell_sets_itself_is_not_looked_for_above():
    assert len(read("n = 3\ndef f(): return n", "n = train()").statements) == 2
    assert len(read("n = n + 1\ndef f(): return n", "n = train()").statements) == 3


@pytest.mark.parametrize("cell, why", [
    ("TWO = len(launch(print, world_size=2))", "no ranks are started"),
    ("TWO = int(open('two.txt').read())", "no file of"), ("TWO = int(input())", "nobody is asked"),
    ("TWO = !echo 2", "magics and shell commands are left out"),
    ("import os\nTWO = os.environ['TWO']", "environment variables"), ("exec('TWO = 2')", "no line that class runs"),
    ("def slow():\n    while True: pass\nTWO = slow()", "it takes too long")])
def test_check_says_at_home_what_class_will_say(main, monkeypatch, cell, why):
    own = "def f():\n    return TWO\n"
    code = read(own, cell)
    namespace, _ = execute(code, 0.2)
    with pytest.raises(NameError):
        namespace["f"]()
    space = {"TWO": 2, "__name__": "__main__"}
    exec(own, space)
    shell = SimpleNamespace(user_ns=space, history_manager=SimpleNamespace(input_hist_raw=["", cell, own]))
    monkeypatch.setattr(context, "ipython_shell", lambda: shell)
    monkeypatch.setattr(names, "seconds_of", {"<1>": 100 * SHARE if "slow" in cell else 0.0})
    told = tell_what_class_lacks(space["f"])
    assert why in "".join(told) and len(told) == 1
    assert code.lost.get("TWO", told[0]) == told[0]


def test_whoever_needs_nothing_special_is_told_nothing(monkeypatch):
    for own, *above in [("def f():\n    return TWO\n", *cells) for _, *cells in SHAPES.values() if "TWO" in cells[0]]:
        space = {"TWO": 2, "__name__": "__main__"}
        exec(own, space)
        history = SimpleNamespace(input_hist_raw=["", *above, *EXPERIMENTS, own, 'check("1.1", f)'])
        shell = SimpleNamespace(user_ns=space, history_manager=history)
        monkeypatch.setattr(context, "ipython_shell", lambda shell=shell: shell)
        assert tell_what_class_lacks(space["f"]) == []


def test_many_shapes_at_once_get_their_marks_and_a_lost_value_its_reason(grade):
    chosen = [SHAPES[shape] for shape in ("a class that a call makes", "a comprehension", "a loop", "await")]
    one = " * ".join(f"({expression} - 1)" for expression, *_ in chosen)
    own = HONEST.replace("(r + 1) % n", f"(r + {one}) % n")
    assert points(grade(own, *[cell for _, *cells in chosen for cell in cells], *EXPERIMENTS)) == 2
    lost = grade(HONEST.replace("(r + 1) % n", "(r + ONE) % n"), "ONE = float('x')")
    assert "ONE comes from another cell, by `ONE = float('x')`. In class it raises ValueError" in lost.cause
