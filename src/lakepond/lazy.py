"""Modules that are imported at their first use: the settings of a trainer are read without importing JAX."""

from importlib import import_module
from typing import Any


class Module:
    """Stands for a module; its first attribute that is read imports it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._name), name)
