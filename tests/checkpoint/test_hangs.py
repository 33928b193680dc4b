"""A rank leaves out a collective: torch's Flight Recorder, under gloo, and stacks say who; @record says who raised."""

import pytest
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from course_lib.checkpoint import accidents
from course_lib.runtime import Deadlock, launch

RAISES = """
import os
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    if os.environ["RANK"] == "1":
        raise ValueError("no text")

main()
"""


def leave_one_out(folder):
    accidents.write_later(folder)
    for step in range(3):
        if dist.get_rank() != 1 or step != 1:
            dist.all_reduce(torch.ones(7))


@pytest.mark.skipif(not hasattr(c10d, "_dump_fr_trace"), reason="an older torch records under NCCL alone")
def test_flight_recorder_names_the_rank_and_the_collective_that_it_has_not_called(tmp_path):
    with pytest.raises(Deadlock, match="number 3 of this launch, and rank 1 has called it only 2"):
        launch(leave_one_out, tmp_path, world_size=3)
    lines = accidents.compare_traces(tmp_path)
    for line in ("Not all ranks joining collective, sequence number: 3", "missing ranks: {1}", "input sizes: [[7]]",
                 "collective: gloo:all_reduce"):
        assert line in lines
    stands = ["in leave_one_out" in (tmp_path / f"stack_{rank}").read_text() for rank in range(3)]
    assert stands == [True, False, True]


def test_the_message_of_the_rank_that_raised_is_read_back_and_other_errors_go_up(tmp_path):
    assert accidents.first_error(RAISES) == "ValueError: no text"
    for call, said in ((lambda: accidents.compare_traces(tmp_path / "nothing"), "fr_trace"),
                       (lambda: accidents.first_error("", num_ranks=1), "ended with 0 and left no error")):
        with pytest.raises(ValueError, match=said):
            call()
