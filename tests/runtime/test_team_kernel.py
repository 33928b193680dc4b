"""%%ranks in a real Jupyter kernel: lines of the cell, values, interrupts, the debugger, and what a kill leaves."""

import sys

import pytest

from tools.harness.kernel import Reply

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="kills kernels and looks into /proc")


@pytest.fixture(scope="module", autouse=True)
def team(kernel):
    told = "\n".join(kernel.run("%%ranks\n1").error["traceback"])
    assert told == ("RanksUsageError: %%ranks runs its cell in ranks that stay, and there are none. Start them in "
                    "a cell of their own: team = start_ranks(world_size=4)")
    assert kernel.run("team = start_ranks(world_size=3)").error is None
    yield
    kernel.run("team.close()")


@pytest.fixture(autouse=True)
def the_next_cell_works(kernel):
    yield
    reply = kernel.run("%%ranks\nx = torch.ones(1)\ndist.all_reduce(x)\nx.item()")
    assert reply.value == "ranks 0 to 2: 3.0", reply


def test_a_cell_runs_in_each_rank_prints_with_the_rank_and_gives_its_last_value(kernel):
    reply = kernel.run("%%ranks\nr = dist.get_rank()\nprint('hello', r)\nr * 10")
    assert reply.value == "rank 0: 0\nrank 1: 10\nrank 2: 20"
    assert sorted(reply.printed().splitlines()) == [f"[rank {rank}] hello {rank}" for rank in range(3)]
    assert kernel.run("%%ranks 0, 2\nr").value == "rank 0: 0\nrank 2: 2"
    assert kernel.run("%%ranks 1-2\nr;").value is None
    # as an exported notebook calls it
    assert kernel.run('get_ipython().run_cell_magic("ranks", "1", "r")').value == "rank 1: 1"


def test_an_error_names_the_line_of_the_cell_as_the_reader_sees_it_and_the_cell_can_be_mended(kernel):
    reply = kernel.run("%%ranks\nkept = 41\nif dist.get_rank() == 1:\n    1 / 0\ndist.barrier()")
    assert reply.error["ename"] == "RankFailed"
    told = "\n".join(reply.error["traceback"]).splitlines()
    assert told[:3] == [f"RankFailed: rank 1 failed at cell In[{reply.number}], line 4", "    1 / 0",
                        "  ZeroDivisionError: division by zero"]
    assert told[3].startswith("  All ranks live, and keep what they hold.") and len(told) == 5
    assert kernel.run("%%ranks\nkept + 1").value == "ranks 0 to 2: 42"


def test_lines_count_from_the_top_of_the_cell_and_a_function_of_another_cell_is_told_with_it(kernel):
    reply = kernel.run("\n\n%%ranks\n\nundefined_name")
    assert f"failed at cell In[{reply.number}], line 5" in "\n".join(reply.error["traceback"])
    first = kernel.run("%%ranks\ndef fail():\n    raise ValueError('inside')").number
    reply = kernel.run("%%ranks\nfail()")
    told = "\n".join(reply.error["traceback"])
    assert f"failed at cell In[{first}], line 3" in told and f"cell In[{reply.number}], line 2" in told
    assert "namespace.py" not in told


def test_a_deadlock_names_the_cells_line_and_everything_is_kept(kernel):
    kernel.run("%%ranks\nkept = dist.get_rank()")
    reply = kernel.run("%%ranks\nif dist.get_rank() == 0:\n    dist.recv(torch.zeros(4), src=1)")
    told = "\n".join(reply.error["traceback"])
    assert reply.error["ename"] == "Deadlock"
    assert f"rank 0  waits at cell In[{reply.number}], line 3:  dist.recv(torch.zeros(4), src=1)" in told
    assert "All ranks live, and keep what they hold." in told
    assert kernel.run("team.pull('kept')").value == "[0, 1, 2]"


def test_what_cannot_run_is_refused_before_any_rank_begins(kernel, snapshot):
    assert kernel.run("%%ranks\nfor").error["ename"] == "SyntaxError"
    errors = [kernel.run(f"%%ranks {line}\n1").error for line in ("0,x", "-1", "7", "2-1")]
    assert "\n".join(error["evalue"] for error in errors) == snapshot


def test_names_of_the_notebook_are_seen_by_a_cell_that_mentions_them(kernel):
    kernel.run("scale = 5\ndef times(x):\n    return x * scale")
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
def test_interrupting_a_cell_tells_where_each_rank_was_and_keeps_what_they_hold(kernel, forever):
    kernel.run("%%ranks\nr = dist.get_rank()\nkept = 3 * r")
    reply = kernel.interrupt_once(f"%%ranks\nprint('there')\n{forever}",
                                  lambda reply: reply.printed().count("there") == 3)
    told = "\n".join(reply.error["traceback"])
    assert reply.error["ename"] == "LaunchInterrupted"
    assert all(f"rank {rank}  was at cell In[{reply.number}], line 3" in told for rank in range(3))
    assert "All ranks live" in told and kernel.run("team.pull('kept')").value == "[0, 3, 6]"


def test_a_breakpoint_of_a_cell_opens_the_debugger_and_the_next_cell_runs_without_it(kernel):
    code = "%%ranks 1\ny = 5\nbreakpoint()\ny = y + 1\ny"
    first = ["n"] if sys.version_info >= (3, 13) else []
    reply = kernel.run(code, [*first, "p y * 100", "y = 7", "c"])
    text = "".join(text for _, text in reply.streams)
    assert reply.error is None and reply.value == "rank 1: 8", reply
    assert "[rank 1] 500" in text and "[rank 1] -> y = y + 1" in text and "namespace.py" not in text
    assert kernel.run("%%ranks\n1 + 1").value == "ranks 0 to 2: 2"


def test_q_or_an_interrupt_at_a_breakpoint_ends_the_call_and_not_the_team(kernel):
    cell = "%%ranks\nbreakpoint()\ndist.barrier()"
    for reply, told in ((kernel.run(cell, ["q"]), "you quit at the breakpoint"),
                        (kernel.interrupt_once(cell, Reply.is_at_a_prompt, []), "interrupted")):
        assert reply.error["ename"] == "LaunchInterrupted" and told in reply.error["evalue"], reply
        assert kernel.run("team.alive").value == "[0, 1, 2]"
