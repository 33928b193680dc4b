"""breakpoint() in a rank: pdb at the cell's input line, while no clock runs; and what ends it."""

import sys

import pytest

from course_lib.runtime import launch
from tools.harness.kernel import Reply

SETUP = """
def on_rank_1():
    x = torch.ones(3) * dist.get_rank()
    if dist.get_rank() == 1:
        breakpoint()
        x = x + 1
    dist.all_reduce(x)
    return x.sum().item()

def everywhere():
    breakpoint()
    dist.barrier()
    return dist.get_rank()

team = start_ranks(world_size=3)
"""
FIRST = ["n"] if sys.version_info >= (3, 13) else []  # there breakpoint() stops at its own line


@pytest.fixture(scope="module", autouse=True)
def functions(kernel):
    assert kernel.run(SETUP).error is None
    yield
    kernel.run("team.close()")


def streams_text(reply: Reply) -> str:
    return "".join(text for _, text in reply.streams)


def test_step_print_a_shape_and_go_on(kernel):
    reply = kernel.run("launch(on_rank_1, world_size=2)", [*FIRST, "x.shape", "n", "p x.tolist()", "w", "ll", "c"])
    assert reply.error is None and reply.value == "[6.0, 6.0]", reply
    text = streams_text(reply)
    assert text.count("[rank 1] (Pdb) ") == 6 + len(FIRST) and "[rank 0]" not in text
    for line in ("x = x + 1", "torch.Size([3])", "dist.all_reduce(x)", "[2.0, 2.0, 2.0]"):
        assert f"[rank 1] {'-> ' * ('=' in line or '(x)' in line)}{line}" in text, text
    # The stack and the source are those of the cell.
    assert "rank.py" not in text and "fork_server.py" not in text
    assert "    if dist.get_rank() == 1:" in text and "B->" not in text


def test_a_breakpoint_of_a_cell_opens_the_debugger_and_the_next_cell_runs_without_it(kernel):
    code = "%%ranks 1\ny = 5\nbreakpoint()\ny = y + 1\ny"
    reply = kernel.run(code, [*FIRST, "p y * 100", "y = 7", "c"])
    assert reply.error is None and reply.value == "rank 1: 8", reply
    text = streams_text(reply)
    assert "[rank 1] 500" in text and "[rank 1] -> y = y + 1" in text and "namespace.py" not in text
    assert kernel.run("%%ranks\n1 + 1").value == "ranks 0 to 2: 2"


def test_ranks_at_breakpoints_take_turns_until_each_goes_on_and_one_that_waits_for_the_others_passes_its_turn(kernel):
    reply = kernel.run("launch(everywhere, world_size=3)", ["p 1", "c"] * 3)
    assert reply.error is None and reply.value == "[0, 1, 2]", reply
    prompts = [text for stream, text in reply.streams if stream == "prompt"]
    assert sorted(prompts) == sorted(f"[rank {rank}] (Pdb) " for rank in (0, 1, 2) for _ in range(2))
    assert all(first == second for first, second in zip(prompts[::2], prompts[1::2])), "two commands in a row each"
    reply = kernel.run("launch(everywhere, world_size=2)", ["n", "c", "c"])
    assert reply.error is None and reply.value == "[0, 1]", reply


def test_the_clocks_stand_still_at_a_breakpoint_and_run_again_behind_it(kernel):
    # The other rank waits in its all-reduce, for longer than the time limit and than it takes to see a deadlock.
    reply = kernel.run("launch(on_rank_1, world_size=2, timeout=1.5)", ["import time; time.sleep(5)", "c"])
    assert reply.error is None and reply.value == "[6.0, 6.0]", reply


@pytest.mark.parametrize("call", ["launch(everywhere, world_size=3)", "%%ranks\nbreakpoint()\ndist.barrier()"])
def test_q_or_an_interrupt_at_the_prompt_ends_the_call_and_neither_leaves_a_process_nor_ends_a_team(kernel, call):
    before = set(kernel.descendants())
    for reply, told in ((kernel.run(call, ["q"]), "you quit at the breakpoint of rank"),
                        (kernel.interrupt_once(call, Reply.is_at_a_prompt, []), "interrupted")):
        assert reply.error["ename"] == "LaunchInterrupted" and told in reply.error["evalue"], reply
        assert set(kernel.descendants()) == before and kernel.run("launch(lambda: 1, world_size=2)").value == "[1, 1]"
        assert kernel.run("%%ranks\ndist.barrier()\n1").value == "ranks 0 to 2: 1"


def test_where_nobody_can_type_it_says_so_at_once_unless_breakpoints_are_switched_off(kernel):
    reply = kernel.run("launch(on_rank_1, world_size=2)")
    assert reply.error["ename"] == "RankFailed" and "here nobody can" in reply.error["evalue"]

    def body():
        breakpoint()
        return 1

    assert launch(body, world_size=2, env={"PYTHONBREAKPOINT": "0"}) == [1, 1]
