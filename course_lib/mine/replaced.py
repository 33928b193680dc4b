"""A place: a name in a module of the course, and what stands there while the reader's answers are in."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Place:
    """`value` instead of what `owner`, a module or a class, has as `name`."""

    owner: Any
    name: str
    value: Any


@contextmanager
def stand_in(places: Iterable[Place]) -> Iterator[None]:
    """A context in which all of `places` hold what they name; afterwards what was there before."""
    before = []
    try:
        for place in places:
            before.append(Place(place.owner, place.name, vars(place.owner)[place.name]))
            setattr(place.owner, place.name, place.value)
        yield
    finally:
        for place in reversed(before):
            setattr(place.owner, place.name, place.value)
