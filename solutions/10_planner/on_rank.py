"""Chapter 10 on a rank: layouts, and plans of a whole run, whose costs the judge says."""

from collections.abc import Callable
from typing import Any

from course_lib.grading.on_rank import data


def better_layout(function: Callable, inputs: list[Any]) -> Any:
    """10.4: a layout. `fitting`: all that fit, of which the function may ask for each whether it is there."""
    *asked, fitting = inputs
    return data(function(*asked, lambda layout: data(layout) in fitting))


def cheapest_run(function: Callable, inputs: list[Any], ask: Callable) -> Any:
    """10.5: plans, each with its share of the tokens. What `look` is asked, the judge answers."""
    offers, *model, deadline = inputs
    own = {name: dict(offer) for name, offer in offers.items()}
    return data(function(lambda plan: tuple(ask(data(plan))), own, *model, deadline))
