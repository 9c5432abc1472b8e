"""`single`: one agent learns with PQN from N frames. The baseline that `mixture` is measured against (A).

while frames < N:
    train a portion           pure, jitted: train(state, updates) -> state, sums of metrics
    evaluate                  in environments of its own
    log, save a checkpoint    killed and started again, it goes on bit for bit as if nothing had happened
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from lakepond import stopping
from lakepond.agents.pqn import PQN, PQNMetrics, PQNState
from lakepond.guards import Guard
from lakepond.runs import Run
from lakepond.runs.metrics import Logger
from lakepond.runs.resume import Resume
from lakepond.trainers import arena, game_settings
from lakepond.trainers.game_settings import SingleConfig
from lakepond.trainers.limits import check_limits
from lakepond.trainers.loop import Loop

PRESETS = game_settings.SINGLE


def build(config: SingleConfig) -> PQN:
    """The algorithm for these settings; `ConfigError` if they are invalid."""
    check_limits(config, game_settings.LIMITS)
    arena.check_budget(config.frames, config.portion, config.pqn.frames)
    env = arena.make_env(config.suite, config.game)
    epsilon = arena.make_epsilon(
        config.epsilon_kind,
        config.epsilon_start,
        config.epsilon_end,
        int(config.frames * config.epsilon_share),
    )
    network = arena.make_network(config.network, env, config.hidden)
    return PQN(env, network, epsilon, config.pqn, config.frames // config.pqn.frames)


@partial(jax.jit, static_argnums=0, donate_argnums=1)
def train(pqn: PQN, state: PQNState, updates: jax.Array) -> tuple[PQNState, PQNMetrics]:
    """A portion of updates; the metrics are summed up over them."""

    def update(_: int, carry: tuple[PQNState, PQNMetrics]) -> tuple[PQNState, PQNMetrics]:
        after, _rollout, seen = pqn.update(carry[0])
        return after, jax.tree.map(jnp.add, carry[1], seen)

    found: tuple[PQNState, PQNMetrics] = jax.lax.fori_loop(0, updates, update, (state, PQNMetrics.zero()))
    return found


@stopping.deferring("portion")
def run(
    config: SingleConfig,
    folder: str | Path,
    *,
    loggers: Sequence[Logger] = (),
    start_over: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> dict[str, float]:
    """Train to the end in a run's folder, from its last checkpoint if there is one; returns the metrics.

    `start_over`: move what the folder holds to a dated folder first.
    """
    how = Resume(start_over=start_over)
    pqn = build(config)
    evaluate = arena.make_evaluate(
        arena.make_env(config.suite, config.game, evaluates=True),
        pqn.network,
        config.evaluation_episodes,
        epsilon=config.evaluation_epsilon,
        most_steps=config.evaluation_steps,
    )
    state = pqn.init(jax.random.PRNGKey(config.seed))
    metrics: dict[str, Any] = {}
    with Run.create(
        folder, "single", config, loggers=loggers, keep_every=config.keep_every, prepare=how.prepare
    ) as kept:
        arrays = {"agent": state, "policy": state.params}
        checkpoint, _ = how.take_up(kept, arrays, {"frames": 0}, lambda _: None)
        if checkpoint is not None:
            state = arena.restored(state, checkpoint.arrays["agent"], pqn.env)
            tell(f"resuming from checkpoint {checkpoint.number}, {checkpoint.state['frames']:,} frames")
        step = config.portion // config.pqn.frames
        with Loop(kept, None, Guard(kept.folder, unit="evaluation")) as loop:
            while (done := int(state.updates)) < pqn.total_updates and loop.goes_on():
                count = min(step, pqn.total_updates - done)
                began = time.perf_counter()
                state, sums = train(pqn, state, count)
                metrics = arena.means(sums, count)  # waits until it is done
                seconds = time.perf_counter() - began
                frames = int(state.updates) * config.pqn.frames
                metrics |= arena.evaluated(evaluate, state.params, frames, greedy=config.evaluation_greedy)
                metrics |= {
                    "samples": frames * config.pqn.epochs,
                    "frames_per_second": count * config.pqn.frames / seconds,
                }
                number = -(-int(state.updates) // step)
                loop.log(frames, metrics, number)
                score = f"score {metrics['score']:6.2f}  evaluation {metrics['evaluation']:6.2f}"
                tell(f"{frames:>10,} frames  {score}")
                arrays = {"agent": state, "policy": state.params}
                save = partial(loop.checkpoint, partial(kept.save, number, arrays, {"frames": frames}))
                at_end = int(state.updates) == pqn.total_updates
                loop.save(save, due=number % config.checkpoint_every == 0 or at_end)
    return metrics
