"""The settings of a run as JSON and back, also if another version wrote them.

A setting that is missing from an older run's config.json has the value of its default, and one that was
renamed is read under its old name. One that this version does not have is named in a warning and otherwise
ignored, unless the run depends on it: then the run is refused.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, Union

from lakepond.errors import ConfigError
from lakepond.lake.format.sealed import NOT_FINITE

log = logging.getLogger("lakepond")
Config = TypeVar("Config")
RENAMED: dict[str, str] = {
    f"{trainer}.{old}": new
    for trainer in ("single", "mixture", "live", "compare")
    for old, new in {
        "frames": "env_steps",
        "portion": "reset_every" if trainer == "mixture" else "evaluate_every",
        "big_samples": "big_replay_ratio",
        "pqn.trace": "lam",
    }.items()
} | {"compare.portions": "reset_parts", "erl.keep_last": "keep_checkpoints"}
"""`trainer.setting` or `trainer.part.setting` of older runs: the name of that setting now"""
REMOVED: dict[str, Any] = {"mixture.clone_to": "all"}
"""`trainer.setting` of older runs: the only value that this version can continue with"""


def as_json(config: Any) -> Any:
    """Settings as JSON would return them: dataclasses as objects, paths as text, tuples as lists.

    A number that is not finite becomes the string "NaN", "Infinity" or "-Infinity", which `from_json` reads
    as a number.
    """
    return json.loads(json.dumps(config, default=_plain), parse_constant=str)


def completed(
    config: Any, there: Mapping[str, Any], trainer: str, default: Any = None
) -> tuple[dict[str, Any], list[str]]:
    """The settings of a config.json that the dataclass `config` has, and the names of those it does not have.

    `trainer`: the name in `RENAMED` and `REMOVED`, with the parts above. `default`: the defaults of a part.
    """
    found: dict[str, Any] = {}
    there = renamed(there, trainer)
    unknown = [name for name in there if name not in {field.name for field in dataclasses.fields(config)}]
    for name in unknown:
        if there[name] != REMOVED.get(f"{trainer}.{name}", there[name]):
            raise ConfigError(
                f"the run has the setting {name}={there[name]!r}, which this version does not have any more; "
                "resume it with the version that started it."
            )
    for field in dataclasses.fields(config):
        name, value = field.name, getattr(config, field.name)
        usual = getattr(default, name, dataclasses.MISSING) if default is not None else _default(field)
        if name not in there:
            if usual is not dataclasses.MISSING:
                found[name] = as_json(usual)
        elif dataclasses.is_dataclass(value) and isinstance(there[name], dict):
            part = None if usual is dataclasses.MISSING else usual
            found[name], more = completed(value, there[name], f"{trainer}.{name}", part)
            unknown += [f"{name}.{each}" for each in more]
        else:
            found[name] = there[name]
    return found, unknown


def renamed(there: Mapping[str, Any], trainer: str) -> dict[str, Any]:
    """The settings by their present names; a value under a present name takes precedence."""
    now = {RENAMED.get(f"{trainer}.{name}", name): value for name, value in there.items()}
    return now | {name: there[name] for name in now if name in there}


def merged(there: Mapping[str, Any], here: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of this version, and those that only the file has, which another version may need."""
    both = {**there, **here}
    for name in there.keys() & here.keys():
        if isinstance(there[name], dict) and isinstance(here[name], dict):
            both[name] = merged(there[name], here[name])
    return both


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The settings by their full names: `rules.context`."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return found


def warn_of_unknown(folder: Path, unknown: list[str]) -> None:
    """One warning that names the settings this version does not have, if there are any."""
    if unknown:
        log.warning(
            "%s has settings that this version does not have and ignores: %s.",
            folder,
            ", ".join(sorted(unknown)),
        )


def from_json(
    kind: type[Config], there: Mapping[str, Any], trainer: str, folder: Path, *, warn: bool = True
) -> Config:
    """The dataclass `kind` with the settings of a run; `ConfigError` if a value is not of its type."""
    usual: Any = kind()
    known, unknown = completed(usual, there, trainer)
    if warn:
        warn_of_unknown(folder, unknown)
    return typing.cast(Config, _made(kind, known, folder, ""))


def _made(kind: type[Any], values: Mapping[str, Any], folder: Path, prefix: str) -> Any:
    hints = typing.get_type_hints(kind)
    given = {}
    for name, value in values.items():
        try:
            given[name] = _typed(hints[name], value, folder, f"{prefix}{name}")
        except TypeError:
            raise ConfigError(
                f"{folder}: the setting {prefix}{name} is {str(value)[:80]!r}, which is not "
                f"{_named(hints[name])}; correct it in config.json."
            ) from None
    return kind(**given)


def _typed(hint: Any, value: Any, folder: Path, name: str) -> Any:
    """A value from JSON as the type that a setting has; `TypeError` if it is not of that type."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        for each in inner:
            try:
                return _typed(each, value, folder, name)
            except TypeError:
                continue
    elif origin is Literal:
        if any(type(value) is type(each) and value == each for each in inner):
            return value
    elif origin is tuple:
        if isinstance(value, list):
            return tuple(_typed(inner[0], each, folder, name) for each in value)
    elif dataclasses.is_dataclass(hint) and isinstance(hint, type):
        if isinstance(value, dict):
            return _made(hint, value, folder, f"{name}.")
    elif hint is Path:
        if isinstance(value, str):
            return Path(value)
    elif hint is float:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return value
        if isinstance(value, str) and value in NOT_FINITE:
            return float(value)
    elif type(value) is hint:  # int, str, bool, None
        return value
    raise TypeError


def _named(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "")


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _plain(value: Any) -> Any:
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) else str(value)  # type: ignore[arg-type]
