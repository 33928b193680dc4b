"""On ranks that stay every answer is judged as on new ones, whatever the answer before has left behind."""

import pytest

from course_lib.grading.selfstudy import check_exercise
from course_lib.grading.staying import StayingAttempts
from tests.grading import toy_exercises as toys
from tests.grading.toy_exercises import Swap

IN_A_ROW = [toys.swap_halves, toys.swaps_and_draws, toys.swaps_and_draws, toys.divides_by_zero, toys.swap_halves,
            toys.leaves_a_message, toys.swap_halves, toys.waits_for_nobody, toys.swap_halves, toys.swap, toys.dies,
            toys.by_the_library, toys.swapped_twice_over, toys.swap_halves]


@pytest.fixture(scope="module")
def attempts():
    with StayingAttempts() as staying:
        yield staying


def test_every_report_is_the_one_of_new_ranks(attempts):
    for function in IN_A_ROW:
        staying, new = check_exercise(Swap(), function, attempts=attempts), check_exercise(Swap(), function)
        assert staying.verdict is new.verdict, function
        if function not in (toys.divides_by_zero, toys.dies):  # whose other ranks are told of by chance
            assert repr(staying) == repr(new)


def test_only_an_answer_that_ends_a_rank_or_leaves_a_message_costs_a_team(attempts):
    check_exercise(Swap(), toys.swap_halves, attempts=attempts)
    for function, costs in ((toys.divides_by_zero, 0), (toys.waits_for_nobody, 0), (toys.leaves_a_message, 1),
                            (toys.dies, 1), (toys.swap_halves, 0)):
        before = attempts.num_teams
        check_exercise(Swap(), function, attempts=attempts)
        check_exercise(Swap(), toys.swap_halves, attempts=attempts)
        assert attempts.num_teams - before == costs, function
