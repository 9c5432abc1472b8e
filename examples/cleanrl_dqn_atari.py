"""DQN on Atari in one file, in the manner of CleanRL, with a replay buffer that survives the process.

    python examples/cleanrl_dqn_atari.py --game breakout --total-timesteps 1000000
    python examples/cleanrl_dqn_atari.py --game breakout --total-timesteps 1000000  # again: it resumes

The buffer stores each frame once: a million transitions take about 7 GB of memory, not 56 GB.
Needs `pip install 'lakepond[sb3,atari]'`. ale-py's emulators preprocess the frames; no OpenCV is needed.
"""

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
    learning_rate: float = 1e-4
    buffer_size: int = 1_000_000
    gamma: float = 0.99
    target_network_frequency: int = 1_000
    batch_size: int = 32
    start_e: float = 1.0
    end_e: float = 0.01
    exploration_fraction: float = 0.10
    learning_starts: int = 80_000
    train_frequency: int = 4
    """environment steps per update, of all environments together"""
    save_frequency: int = 50_000
    """environment steps between two checkpoints"""
    out: Path = Path("runs/cleanrl_dqn_atari")
    device: str = "cuda" if torch.cuda.is_available() else "cpu"


class QNetwork(nn.Module):
    """The value of each action."""

    def __init__(self, actions: int) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Conv2d(4, 32, 8, stride=4),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, stride=2),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(3136, 512),
            nn.ReLU(),
            nn.Linear(512, actions),
        )

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        """From bytes to values."""
        return self.network(frames / 255.0)


def epsilon(args: Args, step: int) -> float:
    """The share of random actions."""
    done = min(1.0, step / (args.exploration_fraction * args.total_timesteps))
    return args.start_e + (args.end_e - args.start_e) * done


def main(args: Args) -> None:
    """Train, or resume."""
    args.out.mkdir(parents=True, exist_ok=True)
    checkpoint = args.out / "checkpoint.pt"
    random.seed(args.seed)
    np.random.seed(args.seed)  # the buffer draws from it
    torch.manual_seed(args.seed)

    envs = AtariVectorEnv(
        args.game, args.num_envs, reward_clipping=False, autoreset_mode=AutoresetMode.SAME_STEP
    )
    q_network = QNetwork(int(envs.single_action_space.n)).to(args.device)
    target_network = QNetwork(int(envs.single_action_space.n)).to(args.device)
    target_network.load_state_dict(q_network.state_dict())
    optimizer = torch.optim.Adam(q_network.parameters(), lr=args.learning_rate)
    buffer = LakepondReplayBuffer(
        args.buffer_size,
        envs.single_observation_space,
        envs.single_action_space,
        args.device,
        n_envs=args.num_envs,
        path=str(args.out / "lake"),  # resumes with its newest steps if it exists
        commit_every=args.save_frequency,
    )
    step = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, map_location=args.device)
        q_network.load_state_dict(saved["q_network"])
        target_network.load_state_dict(saved["target_network"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
        print(f"resumed at step {step:,} with {buffer.size() * args.num_envs:,} transitions in the buffer")

    def save() -> None:
        state = {"step": step, "q_network": q_network.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state | {"target_network": target_network.state_dict()}, f"{checkpoint}.tmp")
        os.replace(f"{checkpoint}.tmp", checkpoint)
        buffer.commit()

    obs, _ = envs.reset(seed=args.seed + step)
    returns, started, first = np.zeros(args.num_envs), time.monotonic(), step
    finished: list[float] = []
    while step < args.total_timesteps:
        actions = np.array([envs.single_action_space.sample() for _ in range(args.num_envs)])
        if random.random() >= epsilon(args, step):
            with torch.no_grad():
                actions = q_network(torch.as_tensor(obs, device=args.device)).argmax(1).cpu().numpy()
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
            data = buffer.sample(args.batch_size)
            with torch.no_grad():
                best = target_network(data.next_observations).amax(1, keepdim=True)
                target = data.rewards + args.gamma * best * (1 - data.dones)
            loss = functional.mse_loss(q_network(data.observations).gather(1, data.actions), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if step // args.target_network_frequency > before // args.target_network_frequency:
            target_network.load_state_dict(q_network.state_dict())
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
