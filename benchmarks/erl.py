"""One generation of ERL beside a plain PyTorch loop: the same network, market, rules and numbers of steps.

    .venv-bench/bin/python -m benchmarks.erl            16 agents x 125 steps, 32 gradient steps of batch 32

lakepond: what `trainers/erl.py` does, recording and the hand-over to the lake included; compiled before it is
          timed.
plain:    each agent in turn; the environment copies a window a step, the network pools it; both windows go
          into a deque, batches are stacked from it. A window that is next_obs and then obs is one array.
"""

from __future__ import annotations

import json
import os
import platform
import random
import tempfile
import time
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import torch
from torch.nn.functional import gelu

from lakepond.agents.market_network import SOFTNESS
from lakepond.envs.market import MarketEnv
from lakepond.envs.market.observe import spans
from lakepond.replay import Replay
from lakepond.trainers import erl

CONFIG = replace(erl.PRESETS["eigen2"], gradient_steps=32, learn_from=0, min_free="0")
RULES = CONFIG.rules
Net = dict[str, torch.Tensor]


class Cost(NamedTuple):
    """What something took; CPU seconds are the fairer ones where others use the machine, too."""

    seconds: float
    cpu_seconds: float

    @classmethod
    def now(cls) -> Cost:
        """To subtract from a later one."""
        return cls(time.perf_counter(), time.process_time())

    def until(self, later: Cost) -> Cost:
        """From this moment to a later one."""
        return Cost(later.seconds - self.seconds, later.cpu_seconds - self.cpu_seconds)


def lakepond_generations(count: int) -> tuple[list[Cost], erl.Evolving]:
    """The cost of each generation, after one that compiles."""
    market = erl.open_market(CONFIG)
    now = erl.first_generation(CONFIG, market.inputs)
    costs = []
    with (
        tempfile.TemporaryDirectory() as folder,
        Replay.open(Path(folder) / "lake", CONFIG.spec(market), CONFIG.capacity, min_free="0") as replay,
    ):
        learner = now.learner
        for number in range(count + 1):
            began = Cost.now()
            chance = erl.Chance.of(CONFIG, market, number)
            erl.record(market, replay, erl.explore(CONFIG, market, now.population, chance))
            replay.commit({"generation": number}, wait=False)
            learner, _ = erl.learn(CONFIG, market, replay, learner, chance.rng)
            jax.block_until_ready(learner)
            costs.append(began.until(Cost.now()))
    return costs[1:], now


# --- the same in PyTorch -----------------------------------------------------------------------------


def to_torch(tree: dict[str, dict[str, jax.Array]], index: int | None = None) -> Net:
    """Parameters by "layer.w" and "layer.b"; one agent of a population."""
    return {
        f"{name}.{part}": torch.tensor(np.asarray(value if index is None else value[index])).requires_grad_()
        for name, layer in tree.items()
        for part, value in layer.items()
    }


def pool(window: torch.Tensor) -> torch.Tensor:
    """(..., context, instruments, features) to the summaries of `observe.summaries`."""
    parts = [window[..., -span:, :, :].sum(dim=-3) / span**0.5 for span in spans(RULES.context)]
    return torch.cat([*parts, window.std(dim=-3, correction=0)], dim=-1)


def dense(net: Net, name: str, x: torch.Tensor) -> torch.Tensor:
    """One layer."""
    return x @ net[f"{name}.w"] + net[f"{name}.b"]


def gelu_(x: torch.Tensor) -> torch.Tensor:
    """As JAX has it by default."""
    return gelu(x, approximate="tanh")


def centred(x: torch.Tensor) -> torch.Tensor:
    """Layer normalisation without parameters."""
    x = x - x.mean(dim=-1, keepdim=True)
    return x * torch.rsqrt((x * x).mean(dim=-1, keepdim=True) + 1e-5)


def embed(net: Net, summary: torch.Tensor) -> torch.Tensor:
    """The trunk."""
    x = gelu_(dense(net, "in", summary))
    x = x + gelu_(dense(net, "mid", centred(x)))
    query, key, value = dense(net, "attend", centred(x)).chunk(3, dim=-1)
    seen = torch.softmax(query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5, dim=-1) @ value
    return centred(x + dense(net, "attended", seen))


def act(net: Net, summary: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """The actor."""
    x = gelu_(dense(net, "hidden", torch.cat([embed(net, summary), position], dim=-1)))
    raw = torch.sigmoid(dense(net, "out", x))
    free = position[..., 3] * (1 - position[..., 0])
    target = RULES.target_low + (RULES.target_high - RULES.target_low) * raw[..., 1]
    return torch.stack([raw[..., 0] * free, target], dim=-1)


def value(net: Net, summary: torch.Tensor, position: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    """A critic."""
    embedding = embed(net, summary)
    target = (action[..., 1:] - RULES.target_low) / (RULES.target_high - RULES.target_low)
    advantage = dense(
        net, "advantage_out", gelu_(dense(net, "advantage", torch.cat([embedding, position, target], dim=-1)))
    )
    pooled = torch.cat([embedding, position], dim=-1).mean(dim=-2)
    state = dense(net, "state_out", gelu_(dense(net, "state", pooled)))[..., 0]
    coefficient = action[..., 0] * position[..., 3] * (1 - position[..., 0])
    every = torch.cat([torch.full_like(coefficient[..., :1], RULES.threshold), coefficient], dim=-1)
    soft = torch.softmax(every / SOFTNESS, dim=-1)
    hard = torch.nn.functional.one_hot(every.argmax(dim=-1), every.shape[-1]).float()
    chosen = (soft + (hard - soft).detach())[..., 1:]
    return state + (chosen * advantage[..., 0]).sum(dim=-1)


class PlainLearner:
    """DDPG with two critics, as `agents/ddpg.py`."""

    def __init__(self, actor: Net, critics: list[Net]) -> None:
        self.actor, self.critics = actor, critics
        self.slow_actor = {k: v.detach().clone() for k, v in actor.items()}
        self.slow_critics = [{k: v.detach().clone() for k, v in c.items()} for c in critics]
        self.actor_adam = torch.optim.Adam(actor.values(), CONFIG.actor_rate)
        self.critic_adam = torch.optim.Adam([v for c in critics for v in c.values()], CONFIG.critic_rate)

    def update(self, batch: list[tuple]) -> None:
        """One gradient step."""
        here, there = (
            pool(torch.from_numpy(np.stack([step[i]["window"] for step in batch]))) for i in (0, 3)
        )
        position, after = (torch.from_numpy(np.stack([s[i]["position"] for s in batch])) for i in (0, 3))
        action = torch.from_numpy(np.stack([step[1] for step in batch]))
        reward = torch.tensor([step[2] for step in batch]) * CONFIG.reward_scale
        going = 1 - torch.tensor([float(step[4]) for step in batch])
        with torch.no_grad():
            next_action = act(self.slow_actor, there, after)
            next_value = torch.stack([value(c, there, after, next_action) for c in self.slow_critics]).amin(
                dim=0
            )
            target = reward + CONFIG.gamma * going * next_value
        loss = torch.stack(
            [((value(c, here, position, action) - target) ** 2).mean() for c in self.critics]
        ).mean()
        self.critic_adam.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_([v for c in self.critics for v in c.values()], 10.0)
        self.critic_adam.step()
        worth = -value(self.critics[0], here, position, act(self.actor, here, position)).mean()
        self.actor_adam.zero_grad()
        worth.backward()
        torch.nn.utils.clip_grad_norm_(self.actor.values(), 10.0)
        self.actor_adam.step()
        with torch.no_grad():
            pairs = [(self.slow_actor, self.actor), *zip(self.slow_critics, self.critics, strict=True)]
            for slow, fast in pairs:
                for name in slow:
                    slow[name] += CONFIG.tau * (fast[name] - slow[name])


def plain_generation(now: erl.Evolving, history: object, seed: int) -> tuple[Cost, Cost]:
    """The cost of acting and of learning."""
    agents = [to_torch(now.population, i) for i in range(CONFIG.sizes.total)]
    critics = [to_torch(now.learner.critics, i) for i in range(CONFIG.critics)]
    learner = PlainLearner(to_torch(now.learner.actor), critics)
    env, draw, rng = MarketEnv(history, RULES), random.Random(seed), np.random.default_rng(seed)
    buffer: deque[tuple] = deque(maxlen=CONFIG.capacity)
    low, high = env.action_space.low, env.action_space.high
    start = int(rng.choice(history.splits.starts("train", RULES)))
    began = Cost.now()
    for agent in agents:
        obs, _ = env.reset(options={"start": start})
        ended = False
        while not ended:
            with torch.no_grad():
                summary = pool(torch.from_numpy(obs["window"]))
                action = act(agent, summary, torch.from_numpy(obs["position"])).numpy()
            noise = rng.standard_normal(action.shape, np.float32) * CONFIG.noise * (high - low)
            free = obs["position"][:, 3] * (1 - obs["position"][:, 0])
            action = np.clip(action + noise, low, high) * np.stack([free, np.ones_like(free)], axis=-1)
            after, reward, terminated, ended, _ = env.step(action)
            buffer.append((obs, action, reward, after, terminated))
            obs = after
    acted = Cost.now()
    for _ in range(CONFIG.gradient_steps):
        learner.update(draw.sample(buffer, CONFIG.batch_size))
    return began.until(acted), acted.until(Cost.now())


def same_numbers(now: erl.Evolving, market: object) -> float:
    """The largest difference between the two networks' actions on a training day."""
    from lakepond.agents import market_network as network

    agent = jax.tree.map(lambda x: x[0], now.population)
    day = market.history.splits.train.start + 50
    position = np.zeros((market.history.shape[1], 4), np.float32)
    position[:, 3] = 1
    ours = network.act(agent, network.embed(agent, market.world.summaries[day]), position, RULES)
    window = torch.from_numpy(market.history.rows[day + 1 - RULES.context : day + 1].copy())
    with torch.no_grad():
        theirs = act(to_torch(now.population, 0), pool(window), torch.from_numpy(position)).numpy()
    return float(np.abs(np.asarray(ours) - theirs).max())


def main() -> None:
    """Measure both, alternating, and print the ratio."""
    torch.set_num_threads(2)
    ours, now = lakepond_generations(2)
    market = erl.open_market(CONFIG)
    difference = same_numbers(now, market)
    if difference > 0.01:
        raise ValueError(f"the two networks differ by {difference}: this would compare two things")
    acting, learning = plain_generation(now, market.history, 0)
    ours += lakepond_generations(2)[0]
    result = {
        "lakepond": [cost._asdict() for cost in ours],
        "plain_acting": acting._asdict(),
        "plain_learning": learning._asdict(),
        "actions_differ_by": difference,
        "machine": [platform.machine(), len(os.sched_getaffinity(0)), os.getloadavg()],
    }
    for name in Cost._fields:
        median = float(np.median([getattr(cost, name) for cost in ours]))
        result[f"ratio_{name}"] = (getattr(acting, name) + getattr(learning, name)) / median
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
