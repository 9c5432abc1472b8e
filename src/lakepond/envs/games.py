"""Names of games, told apart from slips of the pen."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from lakepond.errors import ConfigError


def find_game(name: str, known: Sequence[str], kind: str) -> str:
    """The known name that is meant, whatever its case and separators; else an error with suggestions."""
    plain = {_plain(game): game for game in known}
    if (found := plain.get(_plain(name))) is not None:
        return found
    near = [plain[match] for match in difflib.get_close_matches(_plain(name), plain, n=3, cutoff=0.5)]
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(list(known)[:8])} ..."
    raise ConfigError(f"{name!r} is not a {kind} game; {hint}")


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum()).removesuffix("minatar")
