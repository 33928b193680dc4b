"""Packages whose names load their module on first use, so that what is light in them works without torch."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from importlib import import_module
from importlib.util import find_spec
from types import MappingProxyType, ModuleType
from typing import Any


class LazyPackage(ModuleType):
    """HOMES: a name and the module of the package that has it. Modules of the package are names of it, too.

    Importing a module of a package sets it as an attribute there; it must not hide what is exported under its name, as
    partition.py's partition is. (PEP 562's module __getattr__ alone could not prevent that.)
    """

    HOMES: Mapping[str, str]

    def __getattr__(self, name: str) -> Any:
        if name in self.HOMES:
            return getattr(import_module(f".{self.HOMES[name]}", self.__name__), name)
        if not name.startswith("_") and find_spec(f"{self.__name__}.{name}"):
            return import_module(f".{name}", self.__name__)
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in self.HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __dir__(self) -> Iterable[str]:
        return sorted({*super().__dir__(), *self.HOMES})


def load_on_use(package: str, homes: Mapping[str, Iterable[str]] = MappingProxyType({})) -> None:
    """Make `package`, a name in sys.modules, one of these. homes: by module, the names that it has.

    Its public names, `__all__`, are those and what it has imported until now.
    """
    module = sys.modules[package]
    imported = {name for name, value in vars(module).items()
                if not (name.startswith("_") or isinstance(value, ModuleType) or value is load_on_use)}
    module.HOMES = {name: home for home, names in homes.items() for name in names}
    module.__all__ = sorted({*imported, *module.HOMES})
    module.__class__ = LazyPackage
