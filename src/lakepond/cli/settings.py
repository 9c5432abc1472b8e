"""The settings of a trainer as options: each may be given, what is not given is as in the preset.

The words under a field of the configuration are its help, so they are written once.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import textwrap
import typing
from typing import Annotated, Any, TypeVar

from tyro.conf import arg

Config = TypeVar("Config")


def options_of(kind: type[Any]) -> type[Any]:
    """A dataclass with the fields of `kind` and of dataclasses within it, all None unless given."""
    fields: list[tuple[str, Any, Any]] = []
    for owner in _parts(kind):
        told, types = _docstrings(owner), typing.get_type_hints(owner)
        for field in dataclasses.fields(owner):
            if dataclasses.is_dataclass(types[field.name]):
                continue
            wanted: Any = types[field.name]
            described = arg(
                help=told.get(field.name),
                help_behavior_hint="(default: as the preset)",
                metavar=wanted.__name__.upper() if isinstance(wanted, type) else None,
            )
            option = Annotated[wanted | None, described]
            fields.append((field.name, option, dataclasses.field(default=None)))
    return dataclasses.make_dataclass(f"{kind.__name__}Options", fields, frozen=True)


def with_options(config: Config, options: Any) -> Config:
    """The configuration with what was given in place of what it held."""
    given = {name: value for name, value in vars(options).items() if value is not None}
    changed: Config = _replaced(config, given)
    return changed


def _replaced(config: Any, given: dict[str, Any]) -> Any:
    changed = {}
    for field in dataclasses.fields(config):
        held = getattr(config, field.name)
        if dataclasses.is_dataclass(held):
            changed[field.name] = _replaced(held, given)
        elif field.name in given:
            changed[field.name] = given[field.name]
    return dataclasses.replace(config, **changed)


def _parts(kind: type[Any]) -> list[type[Any]]:
    """A dataclass and those within it."""
    types = typing.get_type_hints(kind)
    inner = [types[f.name] for f in dataclasses.fields(kind) if dataclasses.is_dataclass(types[f.name])]
    return [kind, *(part for each in inner for part in _parts(typing.cast(type[Any], each)))]


def _docstrings(kind: type[Any]) -> dict[str, str]:
    """The string under each field of a class, its own or one it has from another, from the source."""
    told = {}
    for owner in [each for each in reversed(kind.mro()) if dataclasses.is_dataclass(each)]:
        source = ast.parse(textwrap.dedent(inspect.getsource(owner)))
        for field, under in itertools.pairwise(typing.cast(ast.ClassDef, source.body[0]).body):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(under, ast.Expr)
                and isinstance(under.value, ast.Constant)
                and isinstance(under.value.value, str)
            ):
                told[field.target.id] = " ".join(under.value.value.split())
    return told
