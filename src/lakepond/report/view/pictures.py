"""Observations as pictures: the pixels of some steps, one below the other, in one PNG.

A strip of frames takes one request and reads each block of the lake once; the page shows a part of it.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lakepond.report.view.fields import Kind
from lakepond.types import Array

STRIP_FRAMES = 32
"""most frames of a strip"""
STRIP_PIXELS = 4_000_000
"""most pixels of a strip"""
BACKGROUND = (20, 24, 31)
CHANNELS = ("56b4e9", "e69f00", "009e73", "cc79a7", "f0e442", "d55e00", "0072b2")
"""Okabe and Ito's colours, which colour-blind people can distinguish; then the same, paler"""

Pixels = NDArray[np.uint8]


def strip(values: Array, kind: Kind, whole_stack: bool) -> Pixels:
    """The observations of some steps as (height, width) or (height, width, 3) pixels, one below the other."""
    if kind.kind == "channels":
        pictures = _board(values)
    elif kind.kind == "frames":
        frames = values if kind.axis == 0 else np.moveaxis(values, -1, 1)
        if kind.rgb:
            frames = np.moveaxis(frames.reshape(len(values), -1, 3, *frames.shape[2:]), 2, -1)
        pictures = np.concatenate(np.moveaxis(frames, 1, 0), axis=2) if whole_stack else frames[:, -1]
    else:
        pictures = values[:, -1] if values.ndim == 5 else values
    return _as_bytes(np.concatenate(pictures))


def describe_kind(kind: Kind) -> dict[str, Any]:
    """How an observation is shown, with the number of steps in a strip and the colours of channels."""
    strips = {
        "strip": frames_per_strip(kind, whole_stack=False),
        "strip_of_stacks": frames_per_strip(kind, whole_stack=True),
    }
    colours = _colours(kind.depth if kind.kind == "channels" else 0)
    return {**asdict(kind), **strips, "colours": ["#" + bytes(colour).hex() for colour in colours]}


def frames_per_strip(kind: Kind, whole_stack: bool) -> int:
    """How many steps a strip shows; 0 of an observation that is not a picture."""
    if not kind.width:
        return 0
    size = kind.height * kind.width * (kind.depth if whole_stack and kind.kind == "frames" else 1)
    return max(1, min(STRIP_FRAMES, STRIP_PIXELS // size))


def _colours(count: int) -> Pixels:
    """The colours of the channels of a board."""
    known = np.array([list(bytes.fromhex(colour)) for colour in CHANNELS], np.float64)
    again, k = np.divmod(np.arange(count), len(known))
    return np.asarray(known[k] + (255 - known[k]) * np.minimum(0.85, 0.45 * again)[:, None], np.uint8)


def _board(values: Array) -> Pixels:
    """(n, H, W, C): each cell has the colour of its first channel that is set."""
    lit = np.nan_to_num(values.astype(np.float32)) > 0
    pixels: Pixels = _colours(values.shape[-1])[lit.argmax(axis=-1)]
    pixels[~lit.any(axis=-1)] = BACKGROUND
    return pixels


def _as_bytes(pictures: Array) -> Pixels:
    """Pictures as bytes: uint8 unchanged, other numbers scaled from their lowest and highest to 0 and 255."""
    if pictures.dtype == np.uint8:
        return np.ascontiguousarray(pictures)
    plain = np.nan_to_num(pictures.astype(np.float64), posinf=0.0, neginf=0.0)
    low, high = plain.min(), plain.max()
    if low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    return np.asarray((plain - low) * (255.0 / max(high - low, 1e-30)), np.uint8)


def png(pixels: Pixels) -> bytes:
    """A PNG of (height, width) greys or (height, width, 3) colours."""
    height, width = pixels.shape[:2]
    colour = 2 if pixels.ndim == 3 else 0
    lines = np.zeros((height, 1 + pixels[0].size), np.uint8)  # each line begins with its filter: none
    lines[:, 1:] = pixels.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 1)), (b"IEND", b"")]
    data = [
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in chunks
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(data)
