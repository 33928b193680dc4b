"""breakpoint() in a rank: pdb at the cell's input line, while no clock runs; and what ends it."""

import sys

import pytest

from course_lib.runtime import RankFailed, launch
from course_lib.runtime.ranks.conversation import Conversation
from course_lib.runtime.ranks.messages import Asks
from tools.harness.kernel import Kernel, Reply

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
"""


@pytest.fixture(scope="module", autouse=True)
def functions(kernel):
    assert kernel.run(SETUP).error is None


def streams_text(reply: Reply) -> str:
    return "".join(text for _, text in reply.streams)


def left_over(kernel: Kernel) -> list[int]:
    """Processes that a rank may have left: all but the fork server."""
    return kernel.descendants()[1:]


def test_step_print_a_shape_and_go_on(kernel):
    first = ["n"] if sys.version_info >= (3, 13) else []  # there breakpoint() stops at its own line
    reply = kernel.run("launch(on_rank_1, world_size=2)", [*first, "x.shape", "n", "p x.tolist()", "w", "ll", "c"])
    assert reply.error is None and reply.value == "[6.0, 6.0]", reply
    text = streams_text(reply)
    assert text.count("[rank 1] (Pdb) ") == 6 + len(first) and "[rank 0]" not in text
    for line in ("x = x + 1", "torch.Size([3])", "dist.all_reduce(x)", "[2.0, 2.0, 2.0]"):
        assert f"[rank 1] {'-> ' * ('=' in line or '(x)' in line)}{line}" in text, text
    # The stack and the source are those of the cell.
    assert "rank.py" not in text and "fork_server.py" not in text
    assert "    if dist.get_rank() == 1:" in text and "B->" not in text


def test_ranks_at_breakpoints_take_turns_until_each_goes_on(kernel):
    reply = kernel.run("launch(everywhere, world_size=3)", ["p 1", "c"] * 3)
    assert reply.error is None and reply.value == "[0, 1, 2]", reply
    prompts = [text for stream, text in reply.streams if stream == "prompt"]
    assert sorted(prompts) == sorted(f"[rank {rank}] (Pdb) " for rank in (0, 1, 2) for _ in range(2))
    assert all(first == second for first, second in zip(prompts[::2], prompts[1::2])), "two commands in a row each"


def test_a_rank_that_is_told_to_wait_for_the_others_passes_its_turn(kernel):
    reply = kernel.run("launch(everywhere, world_size=2)", ["n", "c", "c"])
    assert reply.error is None and reply.value == "[0, 1]", reply


def test_the_clocks_stand_still_at_a_breakpoint_and_run_again_behind_it(kernel):
    # The other rank waits in its all-reduce, for longer than the time limit and than it takes to see a deadlock.
    reply = kernel.run("launch(on_rank_1, world_size=2, timeout=1.5)", ["import time; time.sleep(5)", "c"])
    assert reply.error is None and reply.value == "[6.0, 6.0]", reply


def test_q_or_an_interrupt_at_the_prompt_ends_the_launch_and_leaves_nothing_behind(kernel):
    call = "launch(everywhere, world_size=3)"
    for reply, told in ((kernel.run(call, ["q"]), "you quit at the breakpoint of rank"),
                        (kernel.interrupt_once(call, Reply.is_at_a_prompt, []), "interrupted")):
        assert reply.error["ename"] == "LaunchInterrupted" and told in reply.error["evalue"], reply
        assert left_over(kernel) == [] and kernel.run("launch(lambda: 1, world_size=2)").value == "[1, 1]"


def test_where_nobody_can_type_it_says_so_at_once_unless_breakpoints_are_switched_off(kernel):
    reply = kernel.run("launch(on_rank_1, world_size=2)")
    assert reply.error["ename"] == "RankFailed" and "here nobody can" in reply.error["evalue"]

    def body():
        breakpoint()
        return 1

    with pytest.raises(RankFailed, match="here nobody can"):
        launch(body, world_size=2)
    assert launch(body, world_size=2, env={"PYTHONBREAKPOINT": "0"}) == [1, 1]


def test_a_conversation_shows_one_prompt_at_a_time_and_keeps_the_turn():
    prompts, answers = [], []
    talk = Conversation(lambda rank, text: prompts.append(rank), lambda rank, typed: answers.append((rank, typed.line)))
    for rank in (2, 0):
        talk.take_question(rank, Asks("at a line"))
    assert prompts == [2] and talk.stands_still
    talk.take_line(2, "n")
    assert prompts == [2] and talk.stands_still, "rank 2 runs, and keeps its turn"
    talk.take_question(2, Asks("at the next"))
    talk.take_line(2, "c")
    talk.end_turn(2)
    assert prompts == [2, 2, 0] and answers == [(2, "n"), (2, "c")]
    talk.take_line(0, "n")
    assert not talk.stands_still
