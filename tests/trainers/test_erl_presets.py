"""The presets of the ERL trainer: `gpu` as far as a CPU can tell, and the memory of `demo`."""

import json
import math
import subprocess
import sys
from dataclasses import asdict, replace

import jax
from tiny_market import TINY

from lakepond.envs.market.observe import spans
from lakepond.plan import PRESETS as PLANNED
from lakepond.trainers import erl

SMALL = {
    name: getattr(TINY, name)
    for name in (
        *("days", "instruments", "rules", "elites", "children", "mutants", "fitness_episodes"),
        *("validation_slices", "capacity", "width", "min_free"),
    )
}


def test_the_gpu_preset_is_sound_and_planned_for():
    config = erl.PRESETS["gpu"]
    erl.check(config)
    assert sum(erl.memory_needed(config, (2500, 108, 9)).values()) < 24e9
    plan = PLANNED["gpu"]
    assert plan.per_generation == config.sizes.total * config.episodes * config.rules.trading_days
    assert (plan.generations, plan.capacity) == (config.generations, config.capacity)
    inputs = 9 * (len(spans(config.rules.context)) + 1)
    shape = jax.eval_shape(lambda: erl.first_generation(config, inputs))
    sizes = [4 * math.prod(leaf.shape[1:]) for leaf in jax.tree.leaves(shape.population)]
    assert sum(sizes) < plan.agent_bytes


def test_a_small_version_of_the_gpu_preset_plays_and_learns(tmp_path):
    config = replace(erl.PRESETS["gpu"], **SMALL, generations=1, learn_from=90, gradient_steps=8)
    assert (config.dtype, config.together, config.batch_size) == ("bfloat16", 256, 256)
    metrics = erl.train(config, tmp_path / "run")
    assert metrics["gradient_steps"] == 8  # as many as asked, not whole programs
    for name in ("fitness_best", "validation", "critic_loss", "actor_loss", "q_mean"):
        assert math.isfinite(metrics[name]), name
    assert asdict(config)["critics"] == 2


def test_the_memory_of_the_demo_is_flat_from_generation_3_to_25(tmp_path):
    command = ["train", "erl", "--preset", "demo", "--generations", "25", "--evaluate", "nothing", "--json"]
    out = [sys.executable, "-m", "lakepond", *command, "--out", str(tmp_path / "run"), "--min-free", "1MB"]
    subprocess.run(out, check=True, capture_output=True)  # a process of its own, with nothing else in it
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == 25
    rss = [line["rss_bytes"] for line in lines]
    replay = lines[24]["bytes_held"] - lines[2]["bytes_held"]
    assert rss[24] - rss[2] < replay + (40 << 20)
