"""Rainbow on Atari in one file, in the manner of CleanRL, with a replay buffer that survives the process.

    python examples/cleanrl_rainbow_atari.py --game breakout --total-timesteps 1000000

Double, dueling, distributional and noisy networks, three-step returns and prioritised replay (Hessel et al.
2018, arXiv 1710.02298). The buffer computes the n-step returns and keeps the priorities, also in the lake: a
run that is started again resumes with both. Needs `pip install 'lakepond[sb3,atari]'`.
"""

import math
import os
import random
import resource
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import tyro
from ale_py.vector_env import AtariVectorEnv
from gymnasium.vector import AutoresetMode
from torch import nn
from torch.nn import functional

from lakepond.adapters.sb3 import LakepondReplayBuffer


@dataclass
class Args:
    """The settings."""

    game: str = "breakout"
    seed: int = 1
    total_timesteps: int = 10_000_000
    num_envs: int = 1
    learning_rate: float = 6.25e-5
    buffer_size: int = 1_000_000
    gamma: float = 0.99
    n_step: int = 3
    alpha: float = 0.5
    """exponent of the priorities"""
    beta: float = 0.4
    """exponent of the importance weights at the start; 1 at the end"""
    atoms: int = 51
    v_min: float = -10.0
    v_max: float = 10.0
    target_network_frequency: int = 8_000
    batch_size: int = 32
    learning_starts: int = 80_000
    train_frequency: int = 4
    save_frequency: int = 50_000
    out: Path = Path("runs/cleanrl_rainbow_atari")
    device: str = "cuda" if torch.cuda.is_available() else "cpu"


class NoisyLinear(nn.Module):
    """Weights with learned, factorised Gaussian noise, in place of an epsilon."""

    def __init__(self, inputs: int, outputs: int, sigma: float = 0.5) -> None:
        super().__init__()
        bound = 1 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(outputs, inputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(outputs).uniform_(-bound, bound))
        self.weight_sigma = nn.Parameter(torch.full((outputs, inputs), sigma * bound))
        self.bias_sigma = nn.Parameter(torch.full((outputs,), sigma * bound))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """With new noise in every call."""
        outputs, inputs = self.weight.shape
        into, out = (self._noise(n, x.device) for n in (inputs, outputs))
        weight = self.weight + self.weight_sigma * out[:, None] * into[None]
        return functional.linear(x, weight, self.bias + self.bias_sigma * out)

    @staticmethod
    def _noise(size: int, device: torch.device) -> torch.Tensor:
        noise = torch.randn(size, device=device)
        return noise.sign() * noise.abs().sqrt()


class RainbowNetwork(nn.Module):
    """Log-probabilities of the return of each action, (B, actions, atoms)."""

    def __init__(self, args: Args, actions: int) -> None:
        super().__init__()
        self.actions, self.atoms = actions, args.atoms
        self.register_buffer("support", torch.linspace(args.v_min, args.v_max, args.atoms))
        self.body = nn.Sequential(
            nn.Conv2d(4, 32, 8, stride=4),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, stride=2),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.value = nn.Sequential(NoisyLinear(3136, 512), nn.ReLU(), NoisyLinear(512, args.atoms))
        self.advantage = nn.Sequential(
            NoisyLinear(3136, 512), nn.ReLU(), NoisyLinear(512, actions * args.atoms)
        )

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        """Dueling: a value and the advantages."""
        features = self.body(frames / 255.0)
        value = self.value(features).view(-1, 1, self.atoms)
        advantage = self.advantage(features).view(-1, self.actions, self.atoms)
        return functional.log_softmax(value + advantage - advantage.mean(1, keepdim=True), dim=2)

    def values(self, frames: torch.Tensor) -> torch.Tensor:
        """The mean return of each action."""
        return (self(frames).exp() * self.support).sum(2)


def projected(
    network: RainbowNetwork, following: torch.Tensor, rewards: torch.Tensor, discounts: torch.Tensor
) -> torch.Tensor:
    """The distribution of `rewards + discounts * return`, on the atoms of the network."""
    support, atoms = network.support, network.atoms
    width = support[1] - support[0]
    where = ((rewards + discounts * support).clamp(support[0], support[-1]) - support[0]) / width
    low = where.floor().clamp(0, atoms - 2)
    share = where - low
    result = torch.zeros_like(following)
    result.scatter_add_(1, low.long(), following * (1 - share))
    return result.scatter_add_(1, low.long() + 1, following * share)


def main(args: Args) -> None:
    """Train, or resume."""
    args.out.mkdir(parents=True, exist_ok=True)
    checkpoint = args.out / "checkpoint.pt"
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    envs = AtariVectorEnv(
        args.game, args.num_envs, reward_clipping=False, autoreset_mode=AutoresetMode.SAME_STEP
    )
    online = RainbowNetwork(args, int(envs.single_action_space.n)).to(args.device)
    target = RainbowNetwork(args, int(envs.single_action_space.n)).to(args.device)
    target.load_state_dict(online.state_dict())
    optimizer = torch.optim.Adam(online.parameters(), lr=args.learning_rate, eps=1.5e-4)
    buffer = LakepondReplayBuffer(
        args.buffer_size,
        envs.single_observation_space,
        envs.single_action_space,
        args.device,
        n_envs=args.num_envs,
        n_steps=args.n_step,
        gamma=args.gamma,
        alpha=args.alpha,
        path=str(args.out / "lake"),
        commit_every=args.save_frequency,
    )
    step = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, map_location=args.device)
        online.load_state_dict(saved["online"])
        target.load_state_dict(saved["target"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
        print(f"resumed at step {step:,} with {buffer.size() * args.num_envs:,} transitions in the buffer")

    def save() -> None:
        state = {"step": step, "online": online.state_dict(), "target": target.state_dict()}
        torch.save(state | {"optimizer": optimizer.state_dict()}, f"{checkpoint}.tmp")
        os.replace(f"{checkpoint}.tmp", checkpoint)
        buffer.commit()

    obs, _ = envs.reset(seed=args.seed + step)
    returns, started, first = np.zeros(args.num_envs), time.monotonic(), step
    finished: list[float] = []
    while step < args.total_timesteps:
        with torch.no_grad():  # the noise explores
            actions = online.values(torch.as_tensor(obs, device=args.device)).argmax(1).cpu().numpy()
        next_obs, rewards, terminated, truncated, infos = envs.step(actions)
        done = terminated | truncated
        real_next = next_obs.copy()
        if done.any():
            real_next[done] = infos["final_obs"][done]
        limits = [{"TimeLimit.truncated": bool(flag)} for flag in truncated & ~terminated]
        buffer.add(obs, real_next, actions, np.sign(rewards), done, limits)
        returns += rewards
        finished += returns[done].tolist()
        returns[done] = 0
        obs, before = next_obs, step
        step += args.num_envs

        updates = step // args.train_frequency - before // args.train_frequency
        for _ in range(updates if step > args.learning_starts else 0):
            buffer.beta = args.beta + (1 - args.beta) * min(1.0, step / args.total_timesteps)
            data = buffer.sample(args.batch_size)
            rows = torch.arange(args.batch_size, device=args.device)
            with torch.no_grad():
                best = online.values(data.next_observations).argmax(1)
                following = target(data.next_observations)[rows, best].exp()
                wanted = projected(online, following, data.rewards, data.discounts * (1 - data.dones))
            chosen = online(data.observations)[rows, data.actions[:, 0]]
            errors = -(wanted * chosen).sum(1)
            loss = (data.weights[:, 0] * errors).mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(online.parameters(), 10.0)
            optimizer.step()
            buffer.update_priorities(data.step_ids, errors)
        if step // args.target_network_frequency > before // args.target_network_frequency:
            target.load_state_dict(online.state_dict())
        if step // args.save_frequency > before // args.save_frequency:
            save()
        if step // 10_000 > before // 10_000:
            stats, rate = buffer.replay.stats(), (step - first) / (time.monotonic() - started)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
            mean = f"{np.mean(finished[-100:]):.1f}" if finished else "none"
            print(
                f"step {step:,}  return {mean}  {rate:,.0f} steps/s  buffer {stats.steps:,} in "
                f"{stats.bytes_held / 1e6:,.0f} MB ({stats.ratio:.1f}x smaller)  process {peak:.2f} GB",
                flush=True,
            )
    save()
    buffer.close()


if __name__ == "__main__":
    main(tyro.cli(Args))
