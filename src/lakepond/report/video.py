"""Observations as a moving picture, with the colours of `view`: a board, or the newest frame of a stack."""

from __future__ import annotations

from pathlib import Path

from lakepond.errors import ConfigError
from lakepond.report.view.fields import kind_of
from lakepond.report.view.pictures import strip
from lakepond.types import Array, Field

SIDE = 240
"""pixels of the longer side, at least"""
FRAME_MILLISECONDS = 83


def save_gif(observations: Array, path: Path) -> Path:
    """Write a GIF of observations: boards (height, width, planes) or stacks (frames, height, width)."""
    from PIL import Image

    shape = observations.shape[1:]
    kind = kind_of(Field(shape, observations.dtype.name), None)
    if not kind.height:
        raise ConfigError(f"observations of shape {shape} are not images; no video can be made of them.")
    pixels = strip(observations, kind, whole_stack=False)
    frames = pixels.reshape(len(observations), -1, *pixels.shape[1:])
    scale = max(1, -(-SIDE // max(kind.height, kind.width)))
    images = [Image.fromarray(frame.repeat(scale, axis=0).repeat(scale, axis=1)) for frame in frames]
    path.parent.mkdir(parents=True, exist_ok=True)
    images[0].save(path, save_all=True, append_images=images[1:], duration=FRAME_MILLISECONDS, loop=0)
    return path
