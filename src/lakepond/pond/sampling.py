"""Choose live steps of a pond: uniformly, by priority, without replacement, as sequences.

The caller holds the pond's lock and has called `pond.update()`. Nothing here takes time in proportion to the
capacity, except where so many steps are asked for, or so few are possible, that all have to be listed.
"""

from __future__ import annotations

import numpy as np

from lakepond.errors import TooFewSteps, UnknownStream
from lakepond.pond.pond import Pond
from lakepond.types import Array

ROUNDS = 16
"""attempts at drawing sequences, or distinct steps, before all that are possible are listed"""


def draw(pond: Pond, count: int, rng: np.random.Generator) -> Array:
    """Ids of steps, with replacement: uniform, or in proportion to priority ** alpha."""
    if pond.priorities is None:
        return rng.integers(pond.oldest, pond.recorded, size=count)
    oldest = pond.oldest
    ids: Array = oldest + (pond.priorities.draw(count, rng) - oldest) % pond.ring
    return ids


def draw_distinct(pond: Pond, count: int, rng: np.random.Generator) -> Array:
    """Ids of different steps: uniform, or by priority, each in proportion among those not drawn yet."""
    if count > pond.size:
        raise TooFewSteps(
            f"{count:,} different steps were asked for, but only {pond.size:,} are stored; "
            "record more, ask for fewer, or pass replace=True."
        )
    if pond.priorities is None:
        return pond.oldest + rng.choice(pond.size, count, replace=False)
    found: dict[int, None] = {}  # skipping repeats leaves a draw without replacement
    for _ in range(ROUNDS if 4 * count <= pond.size else 0):
        points = rng.random(2 * (count - len(found))) * pond.priorities.total()
        found.update(dict.fromkeys(pond.priorities.find(points).tolist()))
        if len(found) >= count:
            places = np.array(list(found)[:count])
            ids: Array = pond.oldest + (places - pond.oldest) % pond.ring
            return ids
    # Efraimidis and Spirakis 2006: the largest of u ** (1 / w) are a weighted draw without replacement
    weights = pond.priorities.weights(pond.places(pond.ids()))
    keys = np.log(rng.random(pond.size)) / weights
    return pond.oldest + np.argsort(-keys)[:count]


def draw_sequences(
    pond: Pond, count: int, length: int, across_episodes: bool, rng: np.random.Generator
) -> Array:
    """Ids (count, length): consecutive steps of one stream; each possible start is drawn as `draw` would."""
    kept: list[Array] = []
    missing = count
    for _ in range(ROUNDS):
        found = sequences_from(pond, draw(pond, 2 * missing, rng), length, across_episodes)[:missing]
        kept.append(found)
        missing -= len(found)
        if missing == 0:
            return np.concatenate(kept)
    possible = sequences_from(pond, pond.ids(), length, across_episodes)
    if not len(possible):
        raise TooFewSteps(
            f"none of the {pond.size:,} steps starts {length} consecutive steps of one stream"
            f"{'' if across_episodes else ' within an episode'}; record more, or ask for shorter sequences."
        )
    weights = None
    if pond.priorities is not None:
        weights = pond.priorities.weights(pond.places(possible[:, 0]))
        weights = weights / weights.sum()
    return np.concatenate([*kept, possible[rng.choice(len(possible), size=missing, p=weights)]])


def sequences_from(pond: Pond, ids: Array, length: int, across_episodes: bool) -> Array:
    """Ids (n, length) of the sequences that start at some of these steps, in their order."""
    distance, count = pond.links.follow(pond.places(ids), length, across_episodes)
    complete = count == length
    found: Array = ids[complete, np.newaxis] + distance[complete]
    return found


def recent(pond: Pond, count: int, stream: int | None) -> Array:
    """Ids of the newest steps, of all or of one stream, oldest first."""
    if stream is None:
        found = np.arange(max(pond.oldest, pond.recorded - count), pond.recorded)
    else:
        found = np.array(pond.links.recent(stream, count, pond.oldest)[::-1], np.int64)
        if not len(found):
            streams = pond.streams
            live = f"{streams[:8]}{' ...' if len(streams) > 8 else ''}" if streams else "none"
            raise UnknownStream(f"no live step belongs to stream {stream!r}; live are {live}.")
    if not 1 <= count == len(found):
        raise TooFewSteps(f"{count:,} recent steps were asked for, but {len(found):,} are stored.")
    return found


def importance(pond: Pond, ids: Array, beta: float) -> Array:
    """Importance weights (N P) ** -beta, divided by the largest of the batch: at most 1."""
    if pond.priorities is None:
        return np.ones(len(ids), np.float32)
    weights = pond.priorities.weights(pond.places(ids))
    scaled: Array = (weights / weights.min()) ** -beta
    return scaled.astype(np.float32)
