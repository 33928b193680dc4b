"""The harness with made-up work: what it counts, in which order it calls, what it writes, what a failure costs."""

import importlib
import itertools
import json
import subprocess
import sys
import textwrap
import threading
import time
from functools import partial

import pytest

from benchmarks import __main__ as command
from benchmarks import harness
from benchmarks.harness import THEIRS, Benchmark, Goal, Result, Seconds, benchmark, choose, discover, turns
from benchmarks.ranks import in_turns, over_ranks, side_by_side
from benchmarks.runner import results
from tests.processes import processes_with

NUMBERS = itertools.count()


def replay(*reported):
    """Work that reports these seconds, one a call."""
    remaining = list(reported)
    return lambda: remaining.pop(0)


def measured(make, runs=1):
    return Result("fake", list(turns(Benchmark("fake", make, runs))))


@pytest.fixture
def registered(monkeypatch):
    """An empty register."""
    monkeypatch.setattr(harness, "REGISTERED", {})
    return harness.REGISTERED


@pytest.fixture
def made_up(registered, tmp_path, monkeypatch):
    """Makes a package of one module from the text of its benchmarks; children can import it too."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("BENCHMARK_TEST", str(tmp_path))  # what the children start inherits it

    def make(source):
        name = f"made_up_benchmarks_{next(NUMBERS)}"
        package = tmp_path / name
        package.mkdir()
        (package / "__init__.py").touch()
        (package / "__main__.py").write_text("raise AssertionError('never imported')")
        imports = "import os, subprocess, sys, threading\nfrom benchmarks.harness import benchmark\n"
        (package / "made_up.py").write_text(imports + textwrap.dedent(source))
        return importlib.import_module(name)

    return make


def still_running(folder):
    """Processes that the children of a test have started."""
    return processes_with("BENCHMARK_TEST", str(folder))


def test_the_two_sides_alternate_after_one_untimed_turn_each():
    calls = []
    sides = (lambda: calls.append("ours"), lambda: calls.append("theirs"))
    measured(lambda: sides, runs=3)
    assert calls == ["ours", "theirs"] + ["ours", "theirs", "theirs", "ours", "ours", "theirs"]


def test_a_result_holds_the_medians_and_ours_over_theirs_also_where_one_launch_times_both():
    apart = measured(lambda: (replay(99.0, 1.0, 3.0, 2.0), replay(99.0, 4.0, 4.0, 8.0)), runs=3)
    pairs = [(99.0, 99.0), (1.0, 4.0), (3.0, 4.0), (2.0, 8.0)]
    together = measured(lambda: replay(*([Seconds(ours), Seconds(theirs)] for ours, theirs in pairs)), runs=3)
    assert apart == together
    assert (apart.ours_s, apart.theirs_s, apart.ratio, apart.runs) == (2.0, 4.0, 0.5, 3)
    assert apart.spread("clock") == (0.25, 0.75) and apart.cpu_ratio is apart.spread("cpu") is None


def test_work_that_reports_no_time_is_timed_from_outside_and_a_time_that_is_not_positive_is_refused():
    result = measured(lambda: (lambda: None, lambda: None))
    assert result.ours_s > 0 and result.theirs_s > 0
    for reported in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="positive seconds it measured, given"):
            harness.seconds(lambda reported=reported: reported)


def test_a_round_on_ranks_takes_as_long_as_its_slowest_rank_and_each_side_begins_as_many_rounds():
    one, other = [(1.0, 5.0), (3.0, 5.0), (9.0, 6.0)], [(2.0, 4.0), (2.0, 4.0), (1.0, 7.0)]
    ranks = [[[Seconds(clock, 10 * clock) for clock in sides] for sides in rounds] for rounds in (one, other)]
    assert over_ranks(ranks) == [Seconds(3.0, 25.0), Seconds(5.0, 45.0)]  # of CPU seconds the mean of the ranks
    assert [in_turns(number, 3) for number in range(3)] == [(0, 1, 2), (1, 2, 0), (2, 0, 1)]


BURN = "import time\nwhile time.process_time() < {}: pass"


def busy(thread_s, child_s=0.0, pause_s=0.0):
    """A step that keeps two threads of its rank busy for thread_s CPU seconds each, and a process for child_s more."""
    def burn():
        until = time.thread_time() + thread_s
        while time.thread_time() < until:
            pass

    def step(number):
        time.sleep(pause_s)
        helper = threading.Thread(target=burn)
        helper.start()
        burn()
        helper.join()
        if child_s:
            subprocess.run([sys.executable, "-S", "-c", BURN.format(child_s)], check=True)

    return step


@pytest.mark.parametrize("ours, theirs, least, most", [
    ({"thread_s": 0.1}, {"thread_s": 0.05}, 1.8, 2.2),
    ({"thread_s": 0.05, "child_s": 0.1}, {"thread_s": 0.1}, 0.9, 1.4),  # Python's start counts, too
    ({"thread_s": 0.0, "pause_s": 0.3}, {"thread_s": 0.05}, 0.0, 0.1),
], ids=["twice", "children", "asleep"])
def test_cpu_seconds_are_those_of_threads_and_children_and_none_of_sleep(ours, theirs, least, most):
    both = side_by_side(partial(busy, **ours), partial(busy, **theirs), rounds=3, world_size=2)
    result = Result("fake", [both()])
    assert least <= result.cpu_ratio <= most
    assert result.theirs_cpu_s == pytest.approx(2 * theirs["thread_s"], rel=0.2)  # of a rank, not of all
    assert [Goal(least).met(result), Goal(most).met(result)] == [False, True]


def test_a_benchmark_is_registered_under_its_own_name_once_and_has_a_run(registered):
    @benchmark(runs=7)
    def ring(): ...

    assert registered["ring"] == Benchmark("ring", ring, 7)
    ring_elsewhere = type(ring)(ring.__code__, {"__name__": "elsewhere"}, "ring")
    with pytest.raises(ValueError, match="elsewhere both name a benchmark 'ring'"):
        benchmark()(ring_elsewhere)
    with pytest.raises(ValueError, match="at least 1 run, given runs=0"):
        benchmark(runs=0)


def test_the_command_prints_a_table_that_ends_with_the_machine_and_writes_json_and_refuses_an_unknown_name(
        made_up, tmp_path, capsys):
    goal = "from benchmarks.harness import Goal\n"
    package = made_up(goal + textwrap.dedent(failing("ring", theirs="0.002", runs="2, goal=Goal(0.4, 'ratio')")))
    files = ["--json", str(tmp_path / "results.json"), "--page", str(tmp_path / "page.md")]
    assert command.main(["ring", *files], package) == 0
    _, line, machine, versions, load, date = capsys.readouterr().out.splitlines()
    assert " ".join(line.split()) == "ring 1.00 2.00 0.50 (0.50-0.50) - - - 2 clock 0.4: not met"
    assert "cores" in machine and "torch" in versions and "before" in load and "date" in date
    [row] = json.loads((tmp_path / "results.json").read_text())
    assert row.items() >= {"name": "ring", "ours_s": 0.001, "theirs_s": 0.002, "ratio": 0.5, "runs": 2,
                           "spread": [0.5, 0.5], "cpu_ratio": None}.items()
    page = (tmp_path / "page.md").read_text()
    assert "| 1.00 | 2.00 | 0.50 (0.50-0.50) | - | - | - | 2 | clock 0.4: not met |" in page and date in page
    with pytest.raises(SystemExit):
        command.main(["nothing"], package)
    assert "no benchmark is called nothing; there are: ring" in capsys.readouterr().err
    assert command.main(["--goals"], made_up(failing("plain", runs=1))) == 0
    out = capsys.readouterr().out
    assert "ring" in out and "plain" not in out


# What fails


def failing(name="bad", ours="0.001", theirs="0.001", runs=2):
    """A benchmark whose sides do this."""
    return f"""
    @benchmark(runs={runs})
    def {name}():
        return lambda: {ours}, lambda: {theirs}
    """


HANG, RAISE = "threading.Event().wait()", "int('not\\na number')"
START = "subprocess.Popen([sys.executable, '-c', 'import threading; threading.Event().wait()']{})"
LEAVE, LEAVE_A_DAEMON = START.format(""), START.format(", start_new_session=True")
GOOD = failing("a_good", theirs="0.002") + failing("z_good", ours=f"{LEAVE} and {LEAVE_A_DAEMON} and 0.003",
                                                   theirs="0.002", runs=1)
FAILING = {
    "hangs": (f"({LEAVE}, {LEAVE_A_DAEMON}, {HANG})", "hung: nothing happened for 2 s"),
    "raises": (RAISE, "raised ValueError: invalid literal for int() with base 10: 'not\\na number'"),
    "exits": ("os._exit(4)", "gave no result: its process ended with exit code 4"),
    "is_killed": ("os.kill(os.getpid(), 9)", "gave no result: its process was killed by SIGKILL"),
    "reports_no_time": ("'fast'", "raised TypeError: must be real number, not str"),
}


def test_a_peer_that_fails_is_a_row_that_says_so_and_the_others_are_measured_and_nothing_is_left(made_up, tmp_path):
    source = GOOD + "".join(failing(name, theirs=work) for name, (work, _) in FAILING.items())
    first, *bad, last = results(choose([], discover(made_up(source))), deadline_s=2.0)
    assert (first.name, first.runs, last.name, last.ratio, last.failure) == ("a_good", 2, "z_good", 1.5, None)
    for each in bad:
        told = {"name": each.name, "runs": 0, "failed": f"theirs {FAILING[each.name][1]}"}
        assert each.as_json() == {**dict.fromkeys(first.as_json()), **told}  # all others are None
    assert {each.name for each in bad} == {*FAILING} and still_running(tmp_path) == []


def test_turns_before_a_failure_are_kept_and_who_failed_and_what_could_not_be_prepared_is_told(made_up):
    package = made_up("""
        from benchmarks.harness import tell

        times = [0.002, 0.004, 9.0]

        @benchmark(runs=5)
        def a():
            return lambda: 0.001, times.pop

        @benchmark(runs=1)
        def b():
            def both():
                tell("side", "theirs")
                raise KeyError("gone")
            return both

        @benchmark()
        def c():
            raise OSError("no browser")
    """)
    kept, both, unprepared = results(choose([], discover(package)), deadline_s=60.0)
    assert (kept.ours_s, kept.theirs_s, kept.runs) == (0.001, 0.003, 2)
    assert str(kept.failure) == "theirs raised IndexError: pop from empty list"
    assert both.failure.side == THEIRS and str(unprepared.failure) == "preparation raised OSError: no browser"


@pytest.mark.parametrize("sides, status", [({"ours": RAISE}, 1), ({"theirs": RAISE}, 0)], ids=["ours", "theirs"])
def test_the_exit_status_is_that_of_ours(sides, status, made_up, capsys):
    assert command.main([], made_up(failing("bad", **sides))) == status
    assert f"failed: {next(iter(sides))} raised ValueError" in capsys.readouterr().out


def test_results_are_written_as_they_come(made_up, tmp_path, monkeypatch):
    seen, file = [], tmp_path / "results.json"

    def interrupted(chosen, *arguments):
        for result in results(chosen, *arguments):
            yield result
            seen.append([row["name"] for row in json.loads(file.read_text())])
            if len(seen) == 2:
                raise KeyboardInterrupt

    monkeypatch.setattr(command, "results", interrupted)
    with pytest.raises(KeyboardInterrupt):
        command.main(["--json", str(file)], made_up(GOOD + failing(theirs=RAISE)))
    assert seen == [["a_good"], ["a_good", "bad"]]
    assert [row["name"] for row in json.loads(file.read_text())] == ["a_good", "bad"]
    assert still_running(tmp_path) == []
