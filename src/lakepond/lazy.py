"""Modules that are imported at their first use: the settings of a trainer are read without importing JAX."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from importlib import import_module
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Module:
    """Stands for a module; its first attribute that is read imports it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # of the import system, which asks for them before it is used
            raise AttributeError(name)
        return getattr(import_module(self._name), name)


@contextmanager
def deferred(*names: str) -> Iterator[None]:
    """Have a library that is imported in the block import these modules at their first use."""
    stand_ins = {name: Module(name) for name in names if name not in sys.modules}
    sys.modules.update(stand_ins)  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in stand_ins:
            del sys.modules[name]


def jit(**options: Any) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function with `jax.jit(function, **options)`; JAX is imported at the first call."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        compiled = cache(lambda: import_module("jax").jit(function, **options))

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            result: R = compiled()(*args, **kwargs)
            return result

        return call

    return decorate
