"""Waiting that stands in for a GPU's work, so that bubbles can be seen where ranks share two cores of a processor.

A rank that computes on a GPU leaves its core alone; four ranks that compute on two cores take turns, and no schedule is
any faster than another. So an action may be told to last at least so long: what is left, it sleeps.
"""

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Real

from course_lib.runtime.sleep import catch_up

Delay = Mapping[str, float | Sequence[float]]  # seconds by kind of action, for all stages or for each


def seconds_of(delay: Delay | None, num_stages: int) -> Callable[[str, int], float]:
    """A function of (kind, stage): how many seconds such an action lasts at least.

    Kinds that are not named take 0, but B takes as long as I and W together. ValueError for what is no time.
    """
    delay = {} if delay is None else delay
    if not isinstance(delay, Mapping) or set(delay) - set("FBIW"):
        raise ValueError(f"delay={delay!r}: expected seconds by kind of action, such as "
                         "{'F': 0.01, 'I': 0.01, 'W': 0.01}; a B takes as long as I and W unless it is named")
    seconds: dict[str, list[float]] = {}
    for kind in "FIWB":
        given = delay.get(kind, 0.0)
        per_stage = [given] * num_stages if isinstance(given, Real) else list(given)
        if len(per_stage) != num_stages or not all(isinstance(s, Real) and 0 <= s < math.inf for s in per_stage):
            raise ValueError(f"delay[{kind!r}]={given!r}: expected seconds of 0 or more, one number or one for each of "
                             f"{num_stages} stages")
        seconds[kind] = [float(each) for each in per_stage]
    if "B" not in delay:
        seconds["B"] = [i + w for i, w in zip(seconds["I"], seconds["W"])]
    return lambda kind, stage: seconds[kind][stage]


@contextlib.contextmanager
def lasting(seconds: float | None) -> Iterator[None]:
    """What happens inside takes at least so many seconds, on a GPU as well; None: as long as it takes."""
    if seconds is None:
        yield
        return
    catch_up()  # a GPU may still wait for what the action needs, and that is the bubble
    started = time.perf_counter()
    yield
    catch_up()
    # Only what the action has not taken itself: a delay below that changes nothing.
    time.sleep(max(0.0, seconds - (time.perf_counter() - started)))
