"""Stable-Baselines3 with its own replay buffer and with lakepond's: speed, memory, saving, identity, kill -9.

`python -m benchmarks.sb3 speed identity memory kill` runs the parts that are named, keeps their figures in
docs/results/sb3.json and writes docs/results/sb3.md. It needs the extras `sb3` and `atari`, and
opencv-python-headless for SB3's Atari wrappers.

Breakout is SB3's own pipeline: `make_atari_env("BreakoutNoFrameskip-v4")` and `VecFrameStack(4)`, so one
observation is (4, 84, 84) uint8. `speed` trains two models in one process, in turns: NumPy's, Python's and
PyTorch's global generators are swapped with them, so each trains as if it were alone. `identity` trains each
model in a process of its own, with one thread; a model that has finished is not trained again when the
command is repeated (`.cache/bench/sb3`).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import ale_py
import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import DQN, SAC
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback, CheckpointCallback
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.vec_env import VecFrameStack

from benchmarks.measure import ROOT, resident_bytes
from lakepond.adapters.sb3 import LakepondReplayBuffer

FIGURES, PAGE = ROOT / "docs" / "results" / "sb3.json", ROOT / "docs" / "results" / "sb3.md"
KEPT = ROOT / ".cache" / "bench" / "sb3"
BUFFERS = {"sb3": ReplayBuffer, "lakepond": LakepondReplayBuffer}


class Vector17(gym.Env):
    """A linear system with 17 floats of observation and 6 of action; a step costs a matrix product."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (17,), np.float32)
        self.action_space = spaces.Box(-1, 1, (6,), np.float32)  # has a generator: each model its own
        rng = np.random.default_rng(0)
        self._a = np.linalg.qr(rng.normal(size=(17, 17)))[0].astype(np.float32) * np.float32(0.99)
        self._b = rng.normal(size=(17, 6)).astype(np.float32) * np.float32(0.1)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Start at a random state."""
        super().reset(seed=seed)
        self._state = self.np_random.normal(size=17).astype(np.float32)
        self._t = 0
        return self._state, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Cost: the distance from 0."""
        self._state = self._a @ self._state + self._b @ action
        self._t += 1
        return self._state, -float(np.abs(self._state).mean()), False, self._t == 200, {}


def breakout(n_envs: int, seed: int = 0) -> Any:
    """SB3's Atari pipeline."""
    gym.register_envs(ale_py)
    return VecFrameStack(make_atari_env("BreakoutNoFrameskip-v4", n_envs=n_envs, seed=seed), 4)


def dqn(buffer: str, n_envs: int, **arguments: Any) -> DQN:
    """DQN with SB3's defaults for Atari but a buffer of 100,000 steps."""
    options = dict(buffer_size=100_000, learning_starts=1_000, train_freq=4, batch_size=32) | arguments
    kind = BUFFERS[buffer]
    return DQN("CnnPolicy", breakout(n_envs), replay_buffer_class=kind, seed=0, device="cpu", **options)


def sac(buffer: str, n_envs: int) -> SAC:
    """SAC on 17 floats."""
    env = make_vec_env(Vector17, n_envs=n_envs, seed=0)
    kind = BUFFERS[buffer]
    return SAC("MlpPolicy", env, replay_buffer_class=kind, learning_starts=200, seed=0, device="cpu")


# --- two models in one process --------------------------------------------------------------------------


class Contestant:
    """A model, the state of the global generators while it is not its turn, and its losses."""

    def __init__(self, model: Any) -> None:
        self.model, self.losses = model, hashlib.sha256()
        self.seconds: list[float] = []
        train = model.train

        def recorded(*args: Any, **kwargs: Any) -> None:
            train(*args, **kwargs)
            logged = {k: float(v) for k, v in model.logger.name_to_value.items() if k.startswith("train/")}
            self.losses.update(json.dumps(logged, sort_keys=True).encode())

        model.train = recorded
        self._generators = self._state()

    @staticmethod
    def _state() -> tuple[Any, ...]:
        return np.random.get_state(), torch.get_rng_state(), random.getstate()

    def turn(self, steps: int) -> None:
        """Train for some steps."""
        numpy_state, torch_state, python_state = self._generators
        np.random.set_state(numpy_state)
        torch.set_rng_state(torch_state)
        random.setstate(python_state)
        begin = time.perf_counter()
        self.model.learn(steps, reset_num_timesteps=False)
        self.seconds.append(time.perf_counter() - begin)
        self._generators = self._state()

    def digest(self) -> dict[str, str]:
        """Of all parameters and of all losses."""
        parameters = hashlib.sha256()
        for name, value in sorted(self.model.policy.state_dict().items()):
            parameters.update(name.encode() + value.numpy().tobytes())
        return {"parameters": parameters.hexdigest()[:16], "losses": self.losses.hexdigest()[:16]}


def duel(make: Any, n_envs: int, turns: int, steps: int) -> dict[str, Any]:
    """Both contestants in turns; the first turn, in which learning starts, is not counted."""
    torch.set_num_threads(os.cpu_count() or 1)
    contestants = {name: Contestant(make(name, n_envs)) for name in BUFFERS}
    for i in range(turns):
        for name in list(BUFFERS)[:: 1 if i % 2 else -1]:
            contestants[name].turn(steps)
        print(f"{make.__name__} {n_envs} envs: turn {i + 1} of {turns}", flush=True)
    ratios = [a / b for a, b in zip(*(c.seconds[1:] for c in contestants.values()), strict=True)]
    return {
        "n_envs": n_envs,
        "steps": contestants["sb3"].model.num_timesteps,
        "updates": contestants["sb3"].model._n_updates,
        "steps_per_second": {n: steps * (turns - 1) / sum(c.seconds[1:]) for n, c in contestants.items()},
        "ratio": statistics.median(ratios),
        "seconds": {n: [round(s, 3) for s in c.seconds] for n, c in contestants.items()},
        "digests": {name: c.digest() for name, c in contestants.items()},
    }


def speed() -> dict[str, Any]:
    """Training steps per second, side by side."""
    return {
        "breakout 1": duel(dqn, 1, 8, 400),
        "breakout 8": duel(dqn, 8, 8, 1_600),
        "sac 1": duel(sac, 1, 8, 250),
    }


def identity(steps: int, n_envs: int) -> dict[str, Any]:
    """Parameters and losses after that many steps; continues with the models that have not finished."""
    KEPT.mkdir(parents=True, exist_ok=True)
    kept = {name: KEPT / f"{name}-{n_envs}-{steps}.json" for name in BUFFERS}
    children = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.sb3", "--child", f"identity {name} {n_envs} {steps} {path}"]
        )
        for name, path in kept.items()
        if not path.exists()
    ]
    assert not any([child.wait() for child in children]), "a training failed"
    found = {name: json.loads(path.read_text()) for name, path in kept.items()}
    same = {key: found["sb3"][key] for key in ("n_envs", "steps", "updates")}
    return {f"breakout {n_envs}": {**same, "digests": {name: f["digests"] for name, f in found.items()}}}


def identity_child(name: str, n_envs: int, steps: int, kept: Path) -> None:
    """Train one model and write the digests after each 1,000 steps."""
    torch.set_num_threads(1)
    contestant, digests = Contestant(dqn(name, n_envs)), {}
    for done in range(1_000, steps + 1, 1_000):
        contestant.turn(1_000)
        digests[str(contestant.model.num_timesteps)] = contestant.digest()
        print(f"{name}, {n_envs} environment(s): {done:,} of {steps:,} steps", flush=True)
    model = contestant.model
    result = {"n_envs": n_envs, "steps": model.num_timesteps, "updates": model._n_updates, "digests": digests}
    kept.with_suffix(".part").write_text(json.dumps(result))
    kept.with_suffix(".part").rename(kept)


# --- memory and saving ------------------------------------------------------------------------------------


def memory(steps: int, prefix: list[str]) -> dict[str, Any]:
    """Each contestant in a fresh process, started with `prefix`."""
    found = {}
    for name in BUFFERS:
        command = [*prefix, sys.executable, "-m", "benchmarks.sb3", "--child", f"memory {name} {steps}"]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
        found[name] = json.loads(done.stdout.splitlines()[-1])
    return found


def memory_child(name: str, steps: int) -> dict[str, Any]:
    """Collect real steps with random actions, save, collect 1,000 more, and save again."""
    with tempfile.TemporaryDirectory(dir=ROOT) as folder:
        options = {"path": f"{folder}/lake"} if name == "lakepond" else {}
        rehearsal = dqn(name, 8, learning_starts=10**9, buffer_size=80)
        rehearsal.learn(400)  # imports and machine code
        del rehearsal
        before = resident_bytes()
        model = dqn(name, 8, learning_starts=10**9, replay_buffer_kwargs=options)
        model.learn(steps)
        held = resident_bytes() - before
        figures: dict[str, Any] = {"steps": steps, "resident_bytes": held}
        for when in ("first", "again"):
            sizes, begin = _bytes_in(folder), time.perf_counter()
            model.save_replay_buffer(f"{folder}/buffer.pkl")
            figures[f"{when}_seconds"] = time.perf_counter() - begin
            written = os.path.getsize(f"{folder}/buffer.pkl")
            figures[f"{when}_bytes"] = written if name == "sb3" else _bytes_in(folder) - sizes
            if when == "first":
                model.learn(1_000, reset_num_timesteps=False)
        return figures


def _bytes_in(folder: str) -> int:
    return sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())


# --- kill -9 ---------------------------------------------------------------------------------------------


class Curve(BaseCallback):
    """Appends each episode's return to a file."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            if "episode" in info:
                with open(self.path, "a") as file:
                    print(
                        self.num_timesteps, info["episode"]["r"], self.model.replay_buffer.size(), file=file
                    )
        return True


TOTAL, KILL_AT = 40_000, 21_000


def kill(prefix: list[str]) -> dict[str, Any]:
    """CartPole trained once through; killed after 21,000 steps and resumed, with and without its lake."""
    found = {}
    for case in ("not killed", "resumed with its lake", "resumed with an empty buffer"):
        with tempfile.TemporaryDirectory() as folder:
            command = [*prefix, sys.executable, "-m", "benchmarks.sb3", "--child", f"kill {folder} {case}"]
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            curve = Path(folder, "curve.txt")
            if case != "not killed":
                while not curve.exists() or _points(curve)[-1][0] < KILL_AT:
                    time.sleep(0.2)
                process.send_signal(signal.SIGKILL)
                process.wait()
                process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            assert process.wait() == 0
            points = _points(curve)
            resumed = next((b for a, b in pairwise(points) if b[0] < a[0]), None)
            last = len(points) if resumed is None else points.index(resumed)
            found[case] = {
                "killed_after": None if resumed is None else points[last - 1][0],
                "resumed_at": None if resumed is None else resumed[0],
                "buffer_then": None if resumed is None else resumed[2],
                "returns": _curve(points, resumed),
            }
            print(case, found[case], flush=True)
    return found


def _points(curve: Path) -> list[tuple[int, float, int]]:
    lines = [line.split() for line in curve.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return [(int(a), float(b), int(c)) for a, b, c in lines] or [(0, 0.0, 0)]


def _curve(points: list[tuple[int, float, int]], resumed: Any) -> list[float | None]:
    """Mean return of the episodes that end in each 5,000 steps; after a resume its own points."""
    if resumed is not None:
        at = points.index(resumed)
        points = [p for p in points[:at] if p[0] < resumed[0]] + points[at:]
    bins: list[list[float]] = [[] for _ in range(TOTAL // 5_000)]
    for step, value, _ in points:
        bins[min(step // 5_000, len(bins) - 1)].append(value)
    return [round(statistics.mean(b), 1) if b else None for b in bins]


def kill_child(folder: str, case: str) -> None:
    """Train, or resume from the newest checkpoint; the lake resumes by itself."""
    torch.set_num_threads(1)
    path = f"{folder}/lake" if case != "resumed with an empty buffer" else None
    env = make_vec_env("CartPole-v1", n_envs=1, seed=0)
    saved = sorted(Path(folder, "models").glob("*.zip"), key=lambda p: int(p.stem.split("_")[1]))
    options = {"path": path, "commit_every": 1_000} if path else {}
    if saved:
        model = DQN.load(saved[-1], env=env)
    else:
        model = DQN(
            "MlpPolicy",
            env,
            learning_rate=2.3e-3,
            batch_size=64,
            buffer_size=100_000,
            learning_starts=1_000,
            gamma=0.99,
            target_update_interval=10,
            train_freq=256,
            gradient_steps=128,
            exploration_fraction=0.16,
            exploration_final_eps=0.04,
            policy_kwargs={"net_arch": [256, 256]},
            replay_buffer_class=LakepondReplayBuffer,
            replay_buffer_kwargs=options,
            seed=0,
            device="cpu",
        )
    checkpoints = CheckpointCallback(5_000, f"{folder}/models", name_prefix="model")
    left = TOTAL - model.num_timesteps
    model.learn(left, callback=[checkpoints, Curve(f"{folder}/curve.txt")], reset_num_timesteps=not saved)


# --- the page ------------------------------------------------------------------------------------------


def page(figures: dict[str, Any]) -> str:
    """docs/results/sb3.md."""
    libraries = ", ".join(f"{n} {version(n)}" for n in ("stable-baselines3", "torch", "ale-py", "numpy"))
    lines = [
        "# Stable-Baselines3: its own buffer and lakepond's",
        "",
        f"`python -m benchmarks.sb3 {' '.join(figures)}`, 2026-11-17, {os.cpu_count()} cores, 24 GiB, no "
        f"GPU, {libraries}. Breakout is SB3's own pipeline, (4, 84, 84) uint8, with a buffer of 100,000 "
        "steps; `CnnPolicy`, batch 32, one update in 4 steps of the vector environment.",
        "",
    ]
    parts = {"speed": speed_table, "identity": identity_table, "memory": memory_table, "kill": kill_table}
    for part, found in figures.items():
        lines += [*parts[part](found), ""]
    return "\n".join(lines).rstrip() + "\n"


def speed_table(found: dict[str, Any]) -> list[str]:
    """Steps per second."""
    lines = [
        "## Speed",
        "",
        "Two models in one process, in turns; the ratio is the median over the turns.",
        "",
        "| training | SB3 steps/s | lakepond steps/s | ratio | same parameters and losses |",
        "|---|---:|---:|---:|---|",
    ]
    for name, f in found.items():
        rate, same = f["steps_per_second"], f["digests"]["sb3"] == f["digests"]["lakepond"]
        what = "SAC, 17 floats" if name.startswith("sac") else f"DQN, Breakout, {f['n_envs']} environment(s)"
        answer = f"yes, after {f['steps']:,} steps" if same else "NO"
        lines.append(
            f"| {what} | {rate['sb3']:,.0f} | {rate['lakepond']:,.0f} | {f['ratio']:.2f} | {answer} |"
        )
    return lines


def identity_table(found: dict[str, Any]) -> list[str]:
    """Digests of parameters and losses."""
    lines = [
        "## The same training, bit for bit",
        "",
        "| training | steps | updates | SB3: parameters, losses | lakepond: parameters, losses | the same |",
        "|---|---:|---:|---|---|---|",
    ]
    for f in found.values():
        sb3, lakepond = f["digests"]["sb3"], f["digests"]["lakepond"]
        last = str(f["steps"])
        digests = " | ".join(f"`{d[last]['parameters']}` `{d[last]['losses']}`" for d in (sb3, lakepond))
        same = f"yes, at {len(sb3)} points on the way" if sb3 == lakepond else "NO"
        what = f"DQN, Breakout, {f['n_envs']} environment(s)"
        lines.append(f"| {what} | {f['steps']:,} | {f['updates']:,} | {digests} | {same} |")
    note = "SHA-256 of all parameters, and of the loss of every update; each model in a process of its own."
    return [*lines, "", note]


def memory_table(found: dict[str, Any]) -> list[str]:
    """Resident memory, time and bytes of saving."""
    a, b = found["sb3"], found["lakepond"]
    lines = [
        "## Memory and saving",
        "",
        f"{a['steps']:,} steps of 8 environments with random actions; each buffer in a fresh process; "
        "lakepond with a lake on the same disk.",
        "",
        "| | SB3 | lakepond | SB3 / lakepond |",
        "|---|---:|---:|---:|",
    ]
    rows = (
        ("resident memory", "resident_bytes", 1e6, "MB"),
        ("first `save_replay_buffer`", "first_seconds", 1, "s"),
        ("its bytes", "first_bytes", 1e6, "MB"),
        ("`save_replay_buffer` after 1,000 new steps", "again_seconds", 1, "s"),
        ("its bytes", "again_bytes", 1e6, "MB"),
    )
    for title, key, unit, name in rows:
        theirs, mine = (f"{x[key] / unit:,.{0 if x[key] / unit > 100 else 3}f} {name}" for x in (a, b))
        lines.append(f"| {title} | {theirs} | {mine} | {a[key] / b[key]:,.1f} |")
    note = "lakepond commits every 10,000 steps in the background; the first save writes the rest."
    return [*lines, "", note]


def kill_table(found: dict[str, Any]) -> list[str]:
    """Learning curves."""
    bins = TOTAL // 5_000
    lines = [
        "## Killed with -9 and resumed",
        "",
        f"DQN on CartPole, {TOTAL:,} steps, a model checkpoint every 5,000 steps, a commit of the lake every "
        "1,000. Mean return of the episodes that end in each 5,000 steps:",
        "",
        "| run | killed after | resumed at | steps in the buffer then | "
        + " | ".join(f"{5 * i + 5}k" for i in range(bins))
        + " |",
        "|---|---:|---:|---:|" + "---:|" * bins,
    ]
    for name, f in found.items():
        cells = [f["killed_after"], f["resumed_at"], f["buffer_then"], *f["returns"]]
        lines.append(f"| {name} | " + " | ".join("" if c is None else f"{c:,}" for c in cells) + " |")
    note = (
        "The lake had every step up to its last commit; the model resumed from its checkpoint. One "
        "seed, and returns of DQN vary: the curves show that a run continues, not that one way is better."
    )
    return [*lines, "", note]


def main() -> None:
    """Run the parts that are named and write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sb3", description=__doc__.splitlines()[0])
    parser.add_argument(
        "parts", nargs="*", help="some of speed, identity, memory, kill; none: the page again"
    )
    parser.add_argument("--steps", type=int, default=20_000, help="of identity")
    parser.add_argument("--envs", type=int, default=8, help="of identity")
    parser.add_argument("--prefix", default="", help="a command to start processes with, such as nice")
    parser.add_argument("--fill", type=int, default=100_000, help="steps of memory")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        what, *rest = options.child.split(" ")
        if what == "memory":
            print(json.dumps(memory_child(rest[0], int(rest[1]))))
        elif what == "identity":
            identity_child(rest[0], int(rest[1]), int(rest[2]), Path(rest[3]))
        else:
            kill_child(rest[0], " ".join(rest[1:]))
        return
    runs = {
        "speed": speed,
        "identity": lambda: identity(options.steps, options.envs),
        "memory": lambda: memory(options.fill, options.prefix.split()),
        "kill": lambda: kill(options.prefix.split()),
    }
    for part in options.parts:
        found = runs[part]()
        figures = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
        figures[part] = {**figures.get(part, {}), **found}
        ordered = {name: figures[name] for name in runs if name in figures}
        FIGURES.write_text(json.dumps(ordered, indent=1) + "\n")
        print(part, json.dumps(found), flush=True)
    PAGE.write_text(page(json.loads(FIGURES.read_text())))


if __name__ == "__main__":
    main()
