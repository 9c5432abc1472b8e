"""Observations as a moving picture: a board in colours, or the newest frame of a stack."""

from __future__ import annotations

import colorsys
from pathlib import Path

import numpy as np

from lakepond.errors import ConfigError
from lakepond.types import Array

SIDE = 240
"""pixels of the longer side, at least"""
FRAME_MILLISECONDS = 83


def save_gif(observations: Array, path: Path) -> Path:
    """Write a GIF of observations: boards (height, width, planes) or stacks (frames, height, width)."""
    from PIL import Image

    first = observations[0]
    if first.ndim != 3:
        raise ConfigError(
            f"observations of shape {first.shape} are not images; no video can be made of them."
        )
    board = first.shape[-1] <= 12 and first.shape[0] == first.shape[1]
    pictures = [paint(each) if board else np.repeat(each[-1][..., None], 3, axis=-1) for each in observations]
    scale = max(1, -(-SIDE // max(pictures[0].shape[:2])))
    images = [Image.fromarray(np.kron(p, np.ones((scale, scale, 1), np.uint8))) for p in pictures]
    path.parent.mkdir(parents=True, exist_ok=True)
    images[0].save(path, save_all=True, append_images=images[1:], duration=FRAME_MILLISECONDS, loop=0)
    return path


def paint(board: Array) -> Array:
    """Planes of 0 and 1 as one picture, one colour each; later planes are drawn over earlier ones."""
    planes = board.shape[-1]
    picture = np.zeros((*board.shape[:2], 3), np.uint8)
    for plane in range(planes):
        colour = np.array(colorsys.hsv_to_rgb(plane / planes, 0.65, 1.0)) * 255
        picture[board[..., plane] > 0] = colour.astype(np.uint8)
    return picture
