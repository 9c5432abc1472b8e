"""The settings of a trainer as options: an option that is not given keeps the value of the preset.

The string under each field of the configuration is its help, so it is written once.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from tyro.conf import arg

Config = TypeVar("Config")
_hints: Callable[..., dict[str, Any]] = cache(typing.get_type_hints)
"""cached: that takes most of the time of `--help`"""
NAMES = {int: "INT", float: "FLOAT", str: "TEXT", bool: "True|False", Path: "PATH"}


def options_of(kind: type[Any], presets: Mapping[str, Any], headings: Mapping[str, str]) -> type[Any]:
    """A dataclass with the settings of `kind` and of the dataclasses in it, None unless given, by heading.

    `presets` are shown as defaults, the first one is the default preset. `headings` gives the names of the
    settings below each, with spaces between them; a setting that is below none is an error.
    """
    found = dict(_owners(kind))
    parts: list[tuple[str, Any, Any]] = []
    for heading, names in headings.items():
        fields = [_option(name, found.pop(name), presets) for name in names.split() if name in found]
        if fields:
            part: Any = dataclasses.make_dataclass(f"{kind.__name__}{heading.title()}", fields, frozen=True)
            option = Annotated[part, arg(name=heading)]
            parts.append((heading.replace("-", "_") or "first", option, dataclasses.field(default=part())))
    if found:
        raise AssertionError(f"the settings {', '.join(found)} of {kind.__name__} have no heading")
    return dataclasses.make_dataclass(f"{kind.__name__}Options", parts, frozen=True)


def with_options(config: Config, options: Any) -> Config:
    """The configuration with the given options in place of its values."""
    every = {name: value for part in vars(options).values() for name, value in vars(part).items()}
    changed: Config = _replaced(config, {name: value for name, value in every.items() if value is not None})
    return changed


def given(options: Any, name: str) -> Any:
    """The value of one option, None if it was not given."""
    return next(vars(part)[name] for part in vars(options).values() if name in vars(part))


def _option(name: str, owner: type[Any], presets: Mapping[str, Any]) -> tuple[str, Any, Any]:
    wanted = _hints(owner)[name]
    values = {preset: _value(config, owner, name) for preset, config in presets.items()}
    described = arg(
        help=_docstrings(owner)[name], help_behavior_hint=_default(values), metavar=_metavar(wanted)
    )
    return name, Annotated[wanted | None, described], dataclasses.field(default=None)


def _default(values: Mapping[str, str]) -> str:
    """The value of the first preset, and of those that differ: "(default: 12; eigen2, gpu: 25)"."""
    usual = next(iter(values.values()))
    others: dict[str, list[str]] = {}
    for preset, value in values.items():
        if value != usual:
            others.setdefault(value, []).append(preset)
    return "; ".join([f"(default: {usual}", *(f"{', '.join(p)}: {v}" for v, p in others.items())]) + ")"


def _value(config: Any, owner: type[Any], name: str) -> str:
    """A setting of a preset as it would be given on the command line."""
    parts = [config, *(value for value in vars(config).values() if dataclasses.is_dataclass(value))]
    value = getattr(next(part for part in parts if isinstance(part, owner)), name)
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


def _metavar(wanted: Any) -> str:
    """INT, PATH, linear|exponential, INT ..."""
    origin, inner = typing.get_origin(wanted), typing.get_args(wanted)
    if origin is Literal:
        return "|".join(map(str, inner))
    if origin is tuple:
        return f"{_metavar(inner[0])} ..."
    if origin in (typing.Union, types.UnionType):
        return "|".join(_metavar(each) for each in inner if each is not type(None))
    return NAMES[wanted]


def _replaced(config: Any, new: dict[str, Any]) -> Any:
    changed = {}
    for field in dataclasses.fields(config):
        held = getattr(config, field.name)
        if dataclasses.is_dataclass(held):
            changed[field.name] = _replaced(held, new)
        elif field.name in new:
            changed[field.name] = new[field.name]
    return dataclasses.replace(config, **changed)


def _owners(kind: type[Any]) -> Iterator[tuple[str, type[Any]]]:
    """The settings of a dataclass and of the dataclasses in it, each with the class that has it."""
    for field in dataclasses.fields(kind):
        hint = _hints(kind)[field.name]
        if dataclasses.is_dataclass(hint):
            yield from _owners(typing.cast(type[Any], hint))
        else:
            yield field.name, kind


def _docstrings(kind: type[Any]) -> dict[str, str]:
    """The string under each field of a class and of the dataclasses it inherits from."""
    found: dict[str, str] = {}
    for owner in reversed(kind.mro()[:-1]):
        found |= _docstrings_in(inspect.getfile(owner))[owner.__name__]
    return found


@cache
def _docstrings_in(file: str) -> dict[str, dict[str, str]]:
    """The strings under the fields of each class in a file."""
    found: dict[str, dict[str, str]] = {}
    for owner in ast.parse(Path(file).read_text()).body:
        if isinstance(owner, ast.ClassDef):
            texts = found.setdefault(owner.name, {})
            for pair in itertools.pairwise(owner.body):
                match pair:
                    case ast.AnnAssign(ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                        texts[name] = " ".join(text.split())
    return found
