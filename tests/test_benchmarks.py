"""The harness with made-up work: what it counts, in which order it calls, what it writes, what a failure costs."""

import importlib
import itertools
import json
import os
import textwrap

import psutil
import pytest

import benchmarks
from benchmarks import __main__ as command
from benchmarks import harness
from benchmarks.harness import EVENTS, THEIRS, Benchmark, Result, benchmark, choose, discover, turns
from benchmarks.ranks import in_turns, slowest_rank
from benchmarks.runner import results

NUMBERS = itertools.count()


def replay(*reported):
    """Work that reports these seconds, one a call."""
    remaining = list(reported)
    return lambda: remaining.pop(0)


def measured(make, runs=1):
    return Result.of("fake", list(turns(Benchmark("fake", make, runs))))


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

    def carries(process):
        try:
            return process.pid != os.getpid() and process.environ().get("BENCHMARK_TEST") == str(folder)
        except (psutil.Error, OSError):
            return False

    return [process for process in psutil.process_iter()
            if carries(process) and process.status() != psutil.STATUS_ZOMBIE]


def test_the_two_sides_alternate_after_one_untimed_turn_each():
    calls = []
    sides = (lambda: calls.append("ours"), lambda: calls.append("theirs"))
    measured(lambda: sides, runs=3)
    assert calls == ["ours", "theirs"] + ["ours", "theirs", "theirs", "ours", "ours", "theirs"]


def test_a_result_holds_the_medians_and_ours_over_theirs():
    ours, theirs = replay(99.0, 1.0, 3.0, 2.0), replay(99.0, 4.0, 4.0, 8.0)
    result = measured(lambda: (ours, theirs), runs=3)
    assert (result.ours_s, result.theirs_s, result.ratio, result.runs) == (2.0, 4.0, 0.5, 3)


def test_work_that_reports_no_time_is_timed_from_outside():
    result = measured(lambda: (lambda: None, lambda: None))
    assert result.ours_s > 0 and result.theirs_s > 0


def test_a_launch_that_times_both_sides_counts_as_a_turn_of_both():
    result = measured(lambda: replay((99.0, 99.0), (1.0, 4.0), (3.0, 4.0), (2.0, 8.0)), runs=3)
    assert (result.ours_s, result.theirs_s, result.runs) == (2.0, 4.0, 3)


def test_a_round_on_ranks_takes_as_long_as_its_slowest_rank():
    one, other = [(1.0, 5.0), (3.0, 5.0), (9.0, 6.0)], [(2.0, 4.0), (2.0, 4.0), (1.0, 7.0)]
    assert slowest_rank([one, other]) == [3.0, 5.0]


def test_each_side_begins_as_many_rounds_as_the_others():
    assert [in_turns(number, 3) for number in range(3)] == [(0, 1, 2), (1, 2, 0), (2, 0, 1)]


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


def test_the_command_prints_a_table_that_ends_with_the_machine_and_writes_the_results_as_json(
        made_up, tmp_path, capsys):
    package = made_up("""
        @benchmark(runs=1)
        def ring():
            return lambda: 0.001, lambda: 0.002
    """)
    assert command.main(["ring", "--json", str(tmp_path / "results.json")], package) == 0
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 5, printed
    _, line, machine, versions, load = printed
    assert line.split() == ["ring", "1.00", "2.00", "0.50", "1"]
    assert "cores" in machine and "torch" in versions and "before" in load
    assert json.loads((tmp_path / "results.json").read_text()) == [
        {"name": "ring", "ours_s": 0.001, "theirs_s": 0.002, "ratio": 0.5, "runs": 1}
    ]


def test_the_command_refuses_an_unknown_name_and_lists_the_known_ones(made_up, capsys):
    with pytest.raises(SystemExit):
        command.main(["nothing"], made_up(""))
    assert "no benchmark is called nothing; there are: none" in capsys.readouterr().err


def test_discovery_imports_every_module_of_the_package(made_up):
    package = made_up("""
        @benchmark()
        def made_up_ring(): ...
    """)
    assert list(discover(package)) == ["made_up_ring"]


# What fails


GOOD = """
    @benchmark(runs=2)
    def a_good():
        return lambda: 0.001, lambda: 0.002

    @benchmark(runs=1)
    def z_good():
        return lambda: 0.003, lambda: 0.002
"""
HANG, RAISE, EXIT = "threading.Event().wait()", "int('not\\na number')", "os._exit(4)"
START = "subprocess.Popen([sys.executable, '-c', 'import threading; threading.Event().wait()']{})"
LEAVE, LEAVE_A_DAEMON = START.format(""), START.format(", start_new_session=True")


def failing(ours="0.001", theirs="0.001"):
    """Three benchmarks of which the second does this."""
    return f"""
    {GOOD}
    @benchmark(runs=2)
    def bad():
        return lambda: {ours}, lambda: {theirs}
    """


@pytest.mark.parametrize("work, what", [
    (HANG, "hung: nothing happened for 2 s"),
    (RAISE, "raised ValueError: invalid literal for int() with base 10: 'not\\na number'"),
    (EXIT, "gave no result: its process ended with exit code 4"),
    ("os.kill(os.getpid(), 9)", "gave no result: its process was killed by SIGKILL"),
    (f"({LEAVE}, {LEAVE_A_DAEMON}, {HANG})", "hung: nothing happened for 2 s"),
    ("'fast'", "raised TypeError: must be real number, not str"),
], ids=["hangs", "raises", "exits", "is killed", "leaves children and hangs", "reports no time"])
def test_a_peer_that_fails_is_a_row_that_says_so_and_the_others_are_measured(work, what, made_up, tmp_path):
    chosen = choose([], discover(made_up(failing(theirs=work))))
    first, bad, last = results(chosen, deadline_s=2.0)
    assert (first.name, first.runs, last.name, last.ratio) == ("a_good", 2, "z_good", 1.5)
    assert bad.as_json() == {"name": "bad", "ours_s": None, "theirs_s": None, "ratio": None, "runs": 0,
                             "failed": f"theirs {what}"}
    assert still_running(tmp_path) == []


@pytest.mark.parametrize("leave", [LEAVE, LEAVE_A_DAEMON], ids=["a child", "a daemon"])
def test_what_a_benchmark_leaves_behind_is_ended_and_its_row_stands(leave, made_up, tmp_path):
    chosen = choose(["bad"], discover(made_up(failing(ours=f"{leave} and 0.001"))))
    (result,) = results(chosen, deadline_s=60.0)
    assert (result.ratio, result.failure) == (1.0, None)
    assert still_running(tmp_path) == []


def test_turns_before_a_failure_are_kept(made_up):
    package = made_up("""
        times = [0.002, 0.004, 9.0]

        @benchmark(runs=5)
        def bad():
            return lambda: 0.001, times.pop
    """)
    (result,) = results(choose([], discover(package)), deadline_s=60.0)
    assert (result.ours_s, result.theirs_s, result.runs) == (0.001, 0.003, 2)
    assert str(result.failure) == "theirs raised IndexError: pop from empty list"


def test_a_launch_that_times_both_says_which_of_them_failed(made_up):
    package = made_up("""
        from benchmarks.harness import tell

        @benchmark(runs=1)
        def bad():
            def both():
                tell("side", "theirs")
                raise KeyError("gone")
            return both
    """)
    (result,) = results(choose([], discover(package)), deadline_s=60.0)
    assert result.failure.side == THEIRS


def test_a_benchmark_that_cannot_be_prepared_is_a_row(made_up):
    package = made_up("""
        @benchmark()
        def bad():
            raise OSError("no browser")
    """)
    (result,) = results(choose([], discover(package)), deadline_s=60.0)
    assert str(result.failure) == "preparation raised OSError: no browser"


@pytest.mark.parametrize("sides, status", [({"ours": RAISE}, 1), ({"theirs": RAISE}, 0)], ids=["ours", "theirs"])
def test_the_exit_status_is_that_of_ours(sides, status, made_up, capsys):
    assert command.main([], made_up(failing(**sides))) == status
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
        command.main(["--json", str(file)], made_up(failing(theirs=RAISE)))
    assert seen == [["a_good"], ["a_good", "bad"]]
    assert [row["name"] for row in json.loads(file.read_text())] == ["a_good", "bad"]
    assert still_running(tmp_path) == []


def test_outside_a_child_nothing_is_told(monkeypatch):
    monkeypatch.delenv(EVENTS, raising=False)
    harness.tell("side", "ours")


def test_every_benchmark_says_what_it_compares():
    assert [name for name, one in discover(benchmarks).items() if not one.make.__doc__] == []
