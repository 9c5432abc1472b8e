"""Find a game by its name, with suggestions for a misspelled one."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Sequence
from typing import Any

from lakepond.errors import ConfigError


def find_game(name: str, known: Sequence[str], kind: str) -> str:
    """The known name that is meant, whatever its case and separators; else an error with suggestions."""
    plain = {_plain(game): game for game in known}
    if (found := plain.get(_plain(name))) is not None:
        return found
    near = [plain[match] for match in difflib.get_close_matches(_plain(name), plain, n=3, cutoff=0.5)]
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(list(known)[:8])} ..."
    raise ConfigError(f"{name!r} is not a {kind} game; {hint}")


def from_module(name: str) -> Any:
    """Call a function `module:function` that makes an environment as `envs/vector.py` describes it."""
    module, _, function = name.partition(":")
    try:
        make = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{name!r} is not a module:function that can be imported ({error}).") from error
    return make()


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum()).removesuffix("minatar")
