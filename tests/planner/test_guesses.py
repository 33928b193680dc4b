"""Numbers that nobody measured are listed as such."""

from types import ModuleType

import pytest

from course_lib.planner import constants, estimate, layer, memory
from course_lib.planner.fit import ASSUMED


@pytest.mark.parametrize("module", [constants, layer, memory, estimate], ids=lambda module: module.__name__)
def test_every_named_number_of_the_model_is_listed_with_its_value(module: ModuleType):
    numbers = {name: value for name, value in vars(module).items() if name.isupper() and isinstance(value, int | float)}
    listed = {each.name: each.value for each in ASSUMED}
    assert numbers.items() <= listed.items()
