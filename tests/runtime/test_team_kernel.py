"""%%ranks in a real Jupyter kernel: lines of the cell, values, interrupts, the debugger, and what a kill leaves."""

import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="kills kernels and looks into /proc")


@pytest.fixture(scope="module", autouse=True)
def team(kernel):
    assert kernel.run("%%ranks\n1").told() == (
        "RanksUsageError: %%ranks runs its cell in ranks that stay, and there are none. Start them in "
        "a cell of their own: team = start_ranks(world_size=4)")
    assert kernel.run("team = start_ranks(world_size=3)").error is None
    kernel.run("%%ranks\nr = dist.get_rank()\nkept = 3 * r")
    yield
    kernel.run("team.close()")


@pytest.fixture(autouse=True)
def the_next_cell_works_and_all_is_kept(kernel):
    yield
    reply = kernel.run("%%ranks\nx = torch.ones(1)\ndist.all_reduce(x)\nx.item()")
    assert reply.value == "ranks 0 to 2: 3.0", reply
    assert kernel.run("team.pull('kept'), team.alive").value == "([0, 3, 6], [0, 1, 2])"


def test_a_cell_runs_in_each_rank_prints_with_the_rank_and_gives_its_last_value(kernel):
    reply = kernel.run("%%ranks\nprint('hello', r)\nr * 10")
    assert reply.value == "rank 0: 0\nrank 1: 10\nrank 2: 20"
    assert sorted(reply.printed().splitlines()) == [f"[rank {rank}] hello {rank}" for rank in range(3)]
    assert kernel.run("%%ranks 0, 2\nr").value == "rank 0: 0\nrank 2: 2"
    assert kernel.run("%%ranks 1-2\nr;").value is None
    # as an exported notebook calls it
    assert kernel.run('get_ipython().run_cell_magic("ranks", "1", "r")').value == "rank 1: 1"


@pytest.mark.parametrize("defines, calls, expected", [
    ("1", "%%ranks\nmended = 41\nif r == 1:\n    1 / 0\ndist.barrier()",
     ["RankFailed: rank 1 failed at cell In[{1}], line 4\n    1 / 0\n  ZeroDivisionError: division by zero\n"
      "  All ranks live, and keep what they hold."]),
    ("1", "\n\n%%ranks\n\nundefined_name", ["failed at cell In[{1}], line 5"]),
    ("%%ranks\ndef fail():\n    raise ValueError('inside')", "%%ranks\nfail()",
     ["failed at cell In[{0}], line 3", "cell In[{1}], line 2"]),
    ("1", "%%ranks\nif r == 0:\n    dist.recv(torch.zeros(4), src=1)",
     ["Deadlock: ", "rank 0  waits at cell In[{1}], line 3:  dist.recv(torch.zeros(4), src=1)",
      "All ranks live, and keep what they hold."]),
], ids=["an error", "lines above", "a function of another cell", "a deadlock"])
def test_an_error_names_the_lines_of_the_cells_as_the_reader_sees_them(kernel, defines, calls, expected):
    number, reply = kernel.run(defines).number, kernel.run(calls)
    assert all(words.format(number, reply.number) in reply.told() for words in expected), reply.told()
    assert "namespace.py" not in reply.told()
    if "mended" in calls:
        assert len(reply.told().splitlines()) == 5 and kernel.run("%%ranks\nmended + 1").value == "ranks 0 to 2: 42"


def test_what_cannot_run_is_refused_before_any_rank_begins(kernel, snapshot):
    assert kernel.run("%%ranks\nfor").error["ename"] == "SyntaxError"
    errors = [kernel.run(f"%%ranks {line}\n1").error for line in ("0,x", "-1", "7", "2-1")]
    assert "\n".join(error["evalue"] for error in errors) == snapshot


def test_names_of_the_notebook_are_seen_by_a_cell_that_mentions_them(kernel):
    kernel.run("scale = 5\ndef times(x):\n    return scale * x")
    assert kernel.run("%%ranks 0\ntimes(2)").value == "rank 0: 10"
    kernel.run("scale = 6")
    assert kernel.run("%%ranks 0\ntimes(2)").value == "rank 0: 12"


@pytest.mark.parametrize("end", ["plt.show()", "None", "plt.gcf()", "1 / 0"],
                         ids=["shown", "left open", "the value", "fails"])
def test_a_picture_of_a_rank_is_shown_once_under_the_cell_also_where_that_fails(kernel, end):
    reply = kernel.run(f"%%ranks 1\nimport matplotlib.pyplot as plt\nplt.plot([1, 2])\n{end}")
    assert (reply.error is not None) == (end == "1 / 0")
    assert len(reply.shown) == 1 and "<img" in reply.shown[0]["text/html"]
    assert kernel.run("%%ranks 1\nplt.get_fignums()").value == "rank 1: []"


@pytest.mark.parametrize("forever", ["while True: pass", "time.sleep(1000)", "dist.barrier() if r else time.sleep(99)"])
def test_interrupting_a_cell_tells_where_each_rank_was(kernel, forever):
    reply = kernel.interrupt_once(f"%%ranks\nprint('there')\n{forever}",
                                  lambda reply: reply.printed().count("there") == 3)
    assert reply.error["ename"] == "LaunchInterrupted" and "All ranks live" in reply.told()
    assert all(f"rank {rank}  was at cell In[{reply.number}], line 3" in reply.told() for rank in range(3))
