"""Atari through ale-py's vector environment, stepped inside `jit` by its XLA bridge (GPL-2: optional).

Preprocessing, stated once (Machado et al. 2018, arXiv 1709.06009):

    84 x 84 grey, the last frames             each action for 4 emulator frames, maximum of the last two
    sticky actions 0.25                       up to 30 no-ops and FIRE at the start
    an episode ends when the game is over     (not with a life), or after 108,000 emulator frames
    rewards -1, 0 or 1 to learn from          scores are the true ones

The bridge starts a new episode with a step of its own, whose action does nothing. That step is reported
as what it is worth: from a game's last observation, reward 0, terminated or truncated as the step before
it; it counts as no episode.

Emulators live outside of JAX and cannot be saved: a run that is resumed begins new episodes.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from lakepond.envs.games import find_game
from lakepond.envs.vector import EnvState, EnvStep, on_host
from lakepond.types import Field


@lru_cache(maxsize=1)
def games() -> tuple[str, ...]:
    """All games whose ROMs come with ale-py, as it spells them."""
    from ale_py import roms

    return tuple(sorted(roms.get_all_rom_ids()))


class Atari:
    """Many emulators of one game; two of these are never equal, for each has emulators of its own."""

    resumes = False

    def __init__(
        self, game: str, *, stack: int = 4, sticky: float = 0.25, size: int = 84, reuse: bool = False
    ) -> None:
        """`stack`: frames per observation. `reuse`: every reset takes the same emulators again."""
        self.name = find_game(game, games(), "Atari")
        self._stack, self._sticky, self._size, self._reuse = stack, sticky, size, reuse
        self._emulators: list[Any] = []  # kept alive: JAX holds only their addresses
        self._bridges: dict[int, tuple[Any, Any, Any]] = {}
        self.actions = int(self._bridge(1)[0].single_action_space.n)
        self.obs = Field((stack, size, size), "uint8", rows=0)

    def _make(self, count: int) -> Any:
        from ale_py.vector_env import AtariVectorEnv

        return AtariVectorEnv(
            self.name,
            count,
            repeat_action_probability=self._sticky,
            img_height=self._size,
            img_width=self._size,
            stack_num=self._stack,
            reward_clipping=False,
            episodic_life=False,
        )

    def _bridge(self, count: int) -> tuple[Any, Any, Any]:
        """Emulators, and the functions that reset and step such; the functions take a handle to any."""
        if count not in self._bridges:
            emulators = self._make(count)
            _, reset, step = emulators.xla()
            self._bridges[count] = emulators, reset, step
        return self._bridges[count]

    def _open(self, count: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The handle of emulators that have no other user."""
        emulators = self._bridge(count)[0] if self._reuse else self._make(count)
        if not self._reuse:
            self._emulators.append(emulators)
        return np.frombuffer(emulators.ale.handle(), np.uint8).copy()

    def reset(self, key: jax.Array, count: int) -> EnvState:
        """`count` emulators at the start of a game."""
        _, reset, _ = self._bridge(count)

        @on_host
        def begin(seeds: jax.Array) -> tuple[jax.Array, jax.Array]:
            handle = io_callback(lambda: self._open(count), jnp.zeros(8, jnp.uint8), ordered=False)
            handle, (obs, _) = reset(handle, seeds)
            return handle, obs

        handle, obs = begin(jax.random.randint(key, (count,), 0, 2**30))
        ended = jnp.zeros(count, bool), jnp.zeros(count, bool)  # two: one array cannot be donated twice
        return EnvState((handle, *ended), obs, jnp.zeros(count, jnp.int32), jnp.zeros(count))

    def step(self, state: EnvState, action: jax.Array, key: jax.Array) -> tuple[EnvState, EnvStep]:
        """One step of every emulator; sticky actions are its own, so the key is not used."""
        handle, was_terminated, was_truncated = state.inner
        starting = was_terminated | was_truncated
        _, _, step = self._bridge(action.shape[0])
        handle, (seen, reward, terminated, truncated, _) = on_host(step)(handle, action.astype(jnp.int32))
        reward = reward.astype(jnp.float32)
        terminated = jnp.where(starting, was_terminated, terminated)
        truncated = jnp.where(starting, was_truncated, truncated & ~terminated)
        score = jnp.where(starting, 0.0, state.score + reward)
        still = jnp.concatenate([state.obs[:, 1:], state.obs[:, -1:]], axis=1)
        found = EnvStep(
            obs=seen,
            next_obs=jnp.where(starting[:, None, None, None], still, seen),
            reward=jnp.where(starting, 0.0, jnp.sign(reward)),
            terminated=terminated,
            truncated=truncated,
            score=score,
            over=(terminated | truncated) & ~starting,
        )
        ended = (terminated & ~starting, truncated & ~starting)
        after = EnvState((handle, *ended), seen, action, jnp.where(starting, 0.0, score))
        return after, found
