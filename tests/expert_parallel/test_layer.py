"""A layer whose experts are dealt out gives the results and all gradients of one process, and sends what the formulas
say. Many cases travel in one launch."""

import pytest

from course_lib.runtime import launch
from tests.expert_parallel.cases import cases, run

PROBLEM_LIMIT = 3


@pytest.mark.parametrize("world_size, ranks_per_group", [(1, 1), (2, 2), (3, 3), (4, 4), (4, 2), (2, 1)])
def test_results_gradients_bytes_and_drops_are_those_of_one_process_and_the_formulas(world_size, ranks_per_group):
    of_ranks = launch(run, list(cases()), ranks_per_group, world_size=world_size)
    problems = [problem for of_rank in of_ranks for problem in of_rank]
    assert not problems, "\n".join(problems[:PROBLEM_LIMIT])
