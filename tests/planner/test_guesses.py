"""Numbers that nobody measured are listed as such."""

from types import ModuleType

import pytest

from course_lib.planner import constants, expert_layer, layer, memory, step
from course_lib.planner.constants import CONSTANTS
from course_lib.planner.guesses import ASSUMED, guesses, is_guess


def test_a_constant_that_ends_where_it_began_is_called_a_guess():
    for constant in CONSTANTS:
        moved = abs(constant.value / constant.prior - 1) >= 0.02
        assert is_guess(constant) == (not moved and constant.uncertainty > 0.9 * constant.prior_uncertainty)
    assert 0 < len(guesses()) < len(CONSTANTS)


@pytest.mark.parametrize("module", [constants, expert_layer, layer, memory, step], ids=lambda module: module.__name__)
def test_every_named_number_of_the_model_is_listed_with_its_value(module: ModuleType):
    numbers = {name: value for name, value in vars(module).items() if name.isupper() and isinstance(value, int | float)}
    listed = {each.name: each.value for each in ASSUMED}
    assert numbers.items() <= listed.items()
