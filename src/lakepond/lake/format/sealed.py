"""Sealed JSON: an object whose last key is a checksum of the text before it.

    {"format": 1, ..., "checksum": "5f0c..."}
    └── the digest of this part and a closing brace ──┘

The text as it lies in the file is what is sealed, so no reader has to write JSON as we do.
"""

from __future__ import annotations

import json
from typing import Any

from lakepond.lake.format.checksum import DIGEST_BYTES, digest_of

_SEAL = b', "checksum": "'
_LENGTH = len(_SEAL) + 2 * DIGEST_BYTES + 2


def seal(told: dict[str, Any]) -> bytes:
    """The file. NaN and infinity are written as Python does, `NaN` and `Infinity`."""
    text = json.dumps(told).encode()
    return text[:-1] + _SEAL + digest_of(text).encode() + b'"}'


def unseal(data: bytes) -> dict[str, Any]:
    """What was sealed; ValueError unless it is, byte for byte, what was written."""
    text, tail = data[:-_LENGTH] + b"}", data[-_LENGTH:]
    if tail != _SEAL + digest_of(text).encode() + b'"}':
        raise ValueError("its checksum does not match")
    told = json.loads(text)
    if not isinstance(told, dict):
        raise ValueError("it is not a JSON object")
    return told
