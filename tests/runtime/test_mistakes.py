"""Mistakes in calling launch, and calls of torch.distributed where there is no launch, get a sentence that helps."""

import pytest

from course_lib.runtime import LaunchError, context, launch
from course_lib.runtime.outside_ranks import SENTENCE, is_outside_ranks
from tools.harness.kernel import Kernel

NO_GROUP = ValueError("Default process group has not been initialized, please make sure to call init_process_group.")


def nothing():
    pass


def one(x):
    return x


@pytest.mark.parametrize(("function", "arguments", "number"), [(nothing, (4,), 4), (one, ("a", 2), 2)])
def test_a_number_that_the_function_does_not_take_was_perhaps_the_world_size(function, arguments, number):
    with pytest.raises(ValueError, match=rf"did you mean world_size={number}\?"):
        launch(function, *arguments)


@pytest.mark.parametrize(("given", "meant"), [("worldsize", "world_size"), ("world_sizes", "world_size"),
                                              ("time_out", "timeout"), ("thread", "threads"), ("Seed", "seed")])
def test_a_keyword_that_is_nearly_one_of_launch_names_it(given, meant):
    with pytest.raises(ValueError, match=rf"neither launch nor nothing takes {given}=...: did you mean {meant}=4\?"):
        launch(nothing, **{given: 4})


def test_a_result_in_place_of_the_function_is_told_so():
    with pytest.raises(ValueError, match="pass the function itself"):
        launch(nothing())


def test_only_a_missing_group_outside_ranks_gets_the_sentence(monkeypatch):
    assert is_outside_ranks(NO_GROUP)
    assert not is_outside_ranks(None) and not is_outside_ranks(ValueError("call init_process_group"))
    assert not is_outside_ranks(LaunchError(str(NO_GROUP)))
    monkeypatch.setattr(context, "under_torchrun", lambda: True)
    assert not is_outside_ranks(NO_GROUP)
    monkeypatch.setattr(context, "under_torchrun", lambda: False)
    monkeypatch.setattr(context, "in_rank", lambda: True)
    assert not is_outside_ranks(NO_GROUP)


@pytest.fixture(scope="module")
def kernel():
    with Kernel() as kernel:
        assert kernel.run("import torch\nimport torch.distributed as dist\n"
                          "from course_lib.grading import check").error is None
        yield kernel


def test_the_first_cell_of_an_exercise_starts_the_server(kernel):
    assert kernel.run("from course_lib.runtime.ranks import pools\n"
                      "pools.pool()._server.poll() is None").value == "True"


@pytest.mark.parametrize("call", ["dist.get_rank()", "dist.all_reduce(torch.zeros(1))",
                                  "dist.send(torch.zeros(1), 1)", "dist.barrier()",
                                  "from course_lib.runtime import launch\ndef f(): dist.get_rank()\nlaunch(f())"])
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


TRAIN = """from course_lib.reference import GPT, GPTConfig, train
from course_lib.runtime import launch
def f(): train(GPT(GPTConfig()), steps=2, held_out=False)
"""


@pytest.mark.parametrize("run", ["f()", "launch(f, world_size=1)"])
def test_a_progress_bar_in_a_notebook_is_neither_an_error_nor_a_widget(kernel, run):
    reply = kernel.run(TRAIN + run)
    assert reply.error is None and "2/2" in reply.printed()
    assert reply.printed("stderr") == "" and reply.shown == []
