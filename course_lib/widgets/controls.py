"""The controls of a widget, as data: each choice has its words and the parameters that it sets."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Choice:
    """`change`: the parameters to set, all at once, so that Python never sees some that do not fit together."""

    label: str
    change: dict[str, Any]


@dataclass(frozen=True)
class Control:
    """A slider or a chooser with a finite number of choices. It shows the one whose `names` are as they are set."""

    kind: str
    label: str
    names: tuple[str, ...]
    choices: tuple[Choice, ...]
    enabled: bool = True

    def values(self) -> dict[str, list[Any]]:
        """The values that its choices give to each of its own parameters."""
        return {name: list(dict.fromkeys(choice.change[name] for choice in self.choices if name in choice.change))
                for name in self.names}

    def plain(self) -> dict[str, Any]:
        return {**vars(self), "choices": [vars(choice) for choice in self.choices]}


Change = Callable[[Any], dict[str, Any]]


def slider(label: str, name: str, values: Iterable[Any], own: Any, show: Callable[[Any], str] = str,
           change: Change | None = None, enabled: bool = True) -> Control:
    """Over `values` in increasing order; `own`, which Python may have set, joins them. None stays first or comes last.

    change(value): what choosing it sets, where that is more than `name`.
    """
    values = list(values)
    known = {*values, own}
    none, numbers = [None] * (None in known), sorted(known - {None})
    ordered = none + numbers if values[0] is None else numbers + none
    return Control("slider", label, (name,), choices_of(name, ordered, show, change), enabled)


def chooser(label: str, name: str, values: Iterable[Any], show: Callable[[Any], str] = str,
            change: Change | None = None) -> Control:
    return Control("chooser", label, (name,), choices_of(name, values, show, change))


def choices_of(name: str, values: Iterable[Any], show: Callable[[Any], str],
               change: Change | None) -> tuple[Choice, ...]:
    return tuple(Choice(show(value), change(value) if change else {name: value}) for value in values)
