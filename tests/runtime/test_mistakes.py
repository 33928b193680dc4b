"""Calls of torch.distributed where there is no launch get a sentence that helps; what is no mistake gets none."""

import pytest

from course_lib.runtime import LaunchError, context
from course_lib.runtime.launcher import SENTENCE, is_outside_ranks

NO_GROUP = ValueError("Default process group has not been initialized, please make sure to call init_process_group.")


def test_only_a_missing_group_outside_ranks_gets_the_sentence(monkeypatch):
    assert is_outside_ranks(NO_GROUP)
    others = None, ValueError("call init_process_group"), LaunchError(str(NO_GROUP))
    assert not any(map(is_outside_ranks, others))
    for where in ("under_torchrun", "in_rank"):
        with monkeypatch.context() as patch:
            patch.setattr(context, where, lambda: True)
            assert not is_outside_ranks(NO_GROUP)


@pytest.mark.parametrize("call", ["dist.get_rank()", "dist.all_reduce(torch.zeros(1))",
                                  "def f(): dist.get_rank()\nlaunch(f())"])
def test_a_call_in_the_notebook_itself_keeps_its_traceback_and_gets_the_sentence(kernel, call):
    reply = kernel.run(call)
    assert "init_process_group" in reply.error["evalue"]
    assert reply.printed("stderr") == SENTENCE + "\n"


def test_another_handler_of_errors_is_still_called(kernel):
    kernel.run("def handler(shell, kind, error, tb, tb_offset=None):\n    print('theirs:', kind.__name__)\n"
               "get_ipython().set_custom_exc((ValueError,), handler)")
    reply = kernel.run("dist.get_rank()")
    assert "theirs: ValueError" in reply.printed() and SENTENCE in reply.printed("stderr")
    kernel.run("get_ipython().set_custom_exc((), None)")


@pytest.mark.parametrize("run", ["f()", "launch(f, world_size=1)"])
def test_a_progress_bar_in_a_notebook_is_neither_an_error_nor_a_widget(kernel, run):
    reply = kernel.run("from course_lib.reference import GPT, GPTConfig, train\n"
                       f"def f(): train(GPT(GPTConfig()), steps=2, held_out=False)\n{run}")
    assert reply.error is None and "2/2" in reply.printed()
    assert reply.printed("stderr") == "" and reply.shown == []
