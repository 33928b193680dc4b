"""The harness with made-up work: what it counts, in which order it calls, what it writes."""

import json
import sys

import pytest

import benchmarks
from benchmarks import __main__ as command
from benchmarks import harness
from benchmarks.harness import Benchmark, benchmark, choose, discover, measure


def replay(*reported):
    """Work that reports these seconds, one a call."""
    remaining = list(reported)
    return lambda: remaining.pop(0)


@pytest.fixture
def registered(monkeypatch):
    """An empty register, and no discovery of the real benchmarks, which take their time."""
    monkeypatch.setattr(harness, "REGISTERED", {})
    monkeypatch.setattr(command, "discover", lambda package: harness.REGISTERED)
    return harness.REGISTERED


def test_the_two_sides_alternate_after_one_untimed_turn_each():
    calls = []
    sides = (lambda: calls.append("ours"), lambda: calls.append("theirs"))
    measure(Benchmark("fake", lambda: sides, runs=3))
    assert calls == ["ours", "theirs"] + ["ours", "theirs", "theirs", "ours", "ours", "theirs"]


def test_a_result_holds_the_medians_and_ours_over_theirs():
    ours, theirs = replay(99.0, 1.0, 3.0, 2.0), replay(99.0, 4.0, 4.0, 8.0)
    result = measure(Benchmark("fake", lambda: (ours, theirs), runs=3))
    assert (result.ours_s, result.theirs_s, result.ratio, result.runs) == (2.0, 4.0, 0.5, 3)


def test_work_that_reports_no_time_is_timed_from_outside():
    result = measure(Benchmark("fake", lambda: (lambda: None, lambda: None), runs=1))
    assert result.ours_s > 0 and result.theirs_s > 0


@pytest.mark.parametrize("reported", [0.0, -1.0, float("nan"), float("inf")])
def test_a_reported_time_that_is_not_positive_is_refused(reported):
    with pytest.raises(ValueError, match="positive seconds it measured, given"):
        harness.seconds(lambda: reported)


def test_a_benchmark_is_registered_under_its_own_name(registered):
    @benchmark(runs=7)
    def ring(): ...

    assert registered["ring"] == Benchmark("ring", ring, 7)


def test_two_modules_cannot_name_the_same_benchmark(registered):
    def ring(): ...

    benchmark()(ring)
    ring_elsewhere = type(ring)(ring.__code__, {"__name__": "elsewhere"}, "ring")
    with pytest.raises(ValueError, match="elsewhere both name a benchmark 'ring'"):
        benchmark()(ring_elsewhere)


def test_a_benchmark_without_runs_is_refused():
    with pytest.raises(ValueError, match="at least 1 run, given runs=0"):
        benchmark(runs=0)


def test_an_unknown_name_is_answered_with_the_known_ones():
    known = {name: Benchmark(name, lambda: (None, None), 1) for name in ("ring", "zero")}
    with pytest.raises(ValueError, match="no benchmark is called rnig; there are: ring, zero"):
        choose(["rnig"], known)


def test_the_command_prints_a_table_and_writes_the_results_as_json(registered, tmp_path, capsys):
    @benchmark(runs=1)
    def ring():
        return replay(9.0, 0.001), replay(9.0, 0.002)

    command.main(["ring", "--json", str(tmp_path / "results.json")])
    header, line = capsys.readouterr().out.splitlines()
    assert line.split() == ["ring", "1.00", "2.00", "0.50", "1"]
    assert json.loads((tmp_path / "results.json").read_text()) == [
        {"name": "ring", "ours_s": 0.001, "theirs_s": 0.002, "ratio": 0.5, "runs": 1}
    ]


def test_the_command_refuses_an_unknown_name_and_lists_the_known_ones(registered, capsys):
    with pytest.raises(SystemExit):
        command.main(["nothing"])
    assert "no benchmark is called nothing; there are: none" in capsys.readouterr().err


def test_discovery_imports_every_module_of_the_package(registered, tmp_path, monkeypatch):
    package = tmp_path / "made_up_benchmarks"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text("raise AssertionError('never imported')")
    (package / "ring.py").write_text(
        "from benchmarks.harness import benchmark\n@benchmark()\ndef made_up_ring(): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    __import__("made_up_benchmarks")
    assert list(discover(sys.modules["made_up_benchmarks"])) == ["made_up_ring"]


def test_every_benchmark_says_what_it_compares():
    assert [name for name, one in discover(benchmarks).items() if not one.make.__doc__] == []
