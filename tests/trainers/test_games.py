"""`single`, `mixture` and `live`: stopped anywhere and resumed, they end with the same bits."""

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import optax
import pytest
from safetensors.numpy import load_file
from tiny_market import TINY

import lakepond as lp
from faults.training import fingerprint
from lakepond.agents import fleet
from lakepond.agents.pqn import PQNSettings
from lakepond.cloud.place import Cloud
from lakepond.errors import (
    ConfigError,
    RunMismatch,
    RunNotFound,
    RunNotSaved,
    SpecError,
    UnknownStream,
)
from lakepond.guards import METRICS
from lakepond.lake.read.lake import Lake
from lakepond.report.video import save_gif
from lakepond.runs import Run
from lakepond.runs.copies import pull_run
from lakepond.trainers import arena, compare, erl, live, loop, mixture, single
from lakepond.trainers.play import play

SINGLE = replace(
    single.PRESETS["tiny"],
    env_steps=2_048,
    evaluate_every=512,
    hidden=(8,),
    pqn=PQNSettings(envs=8, rollout=16, minibatches=2),
    checkpoint_every=1,
    evaluation_episodes=4,
)
REPLAYING = replace(SINGLE, replay_share=0.5, replay_pond=512, min_free="0")
MIXTURE = replace(
    mixture.PRESETS["tiny"],
    env_steps=3_072,
    reset_every=1_024,
    evaluate_every=512,
    hidden=(8,),
    pqn=PQNSettings(envs=4, rollout=16, minibatches=2),
    pond=192,
    big_pond=2_000,
    big_batch=64,
    checkpoint_every=1,
    evaluation_episodes=4,
    min_free="0",
)
LIVE = replace(
    live.PRESETS["tiny"],
    env_steps=3_200,
    evaluate_every=640,
    hidden=(8,),
    pqn=PQNSettings(envs=4, rollout=16, minibatches=2),
    big_envs=4,
    big_pond=1_000,
    big_alpha=0.5,
    checkpoint_every=1,
    min_free="0",
)
ACTS = replace(LIVE, big_learner="pqn", big_alpha=None, clone_every=640, big_replay_ratio=1.0, lake=False)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A mixture that nobody stopped."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    mixture.run(MIXTURE, folder)
    return folder


@pytest.fixture(scope="module")
def whole_live(tmp_path_factory):
    """A live run that nobody stopped."""
    folder = tmp_path_factory.mktemp("live") / "run"
    live.run(LIVE, folder)
    return folder


@pytest.fixture(scope="module")
def whole_acts(tmp_path_factory):
    """A live run whose big agent acts and replays, that nobody stopped."""
    folder = tmp_path_factory.mktemp("acts") / "run"
    live.run(ACTS, folder)
    return folder


@pytest.fixture(scope="module")
def whole_single(tmp_path_factory):
    """A single agent that nobody stopped."""
    folder = tmp_path_factory.mktemp("single") / "run"
    single.run(SINGLE, folder)
    return folder


@pytest.fixture(scope="module")
def whole_replaying(tmp_path_factory):
    """A single agent with a lake that nobody stopped."""
    folder = tmp_path_factory.mktemp("replaying") / "run"
    single.run(REPLAYING, folder)
    return folder


class Stopped(Exception):
    pass


def stop_after(lines):
    printed = []

    def tell(line):
        printed.append(line)
        if len(printed) == lines:
            raise Stopped

    return tell


def final(folder):
    """The bytes of the newest checkpoint's arrays, and the metrics without those of the machine."""
    run = Run.open(folder)
    newest = max(run.checkpoints())
    files = sorted((Path(folder) / "checkpoints" / f"{newest:08d}").glob("*.safetensors"))
    metrics = [
        {k: v for k, v in line.items() if k not in ("time", *METRICS) and "second" not in k}
        for line in run.history()
    ]
    return {file.name: file.read_bytes() for file in files}, metrics


def assert_totals(folder):
    """The seconds of training, pouring and filling are those of the run so far, before a resume too."""
    lines = list(Run.open(folder).history())
    for name in ("seconds_train", "seconds_pour", "seconds_fill"):
        spent = [line[name] for line in lines]
        assert spent == sorted(spent)
        assert spent[-1] > 0


def arrays_of(folder):
    """The arrays of the newest checkpoint of a live run, by name."""
    newest = max(Run.open(folder).checkpoints())
    return load_file(Path(folder) / "checkpoints" / f"{newest:08d}" / "all.safetensors")


def assert_same(one, other):
    assert final(one)[1] == final(other)[1]
    assert final(one)[0] == final(other)[0]


def assert_close_so_far(one, other):
    """A run that was stopped has the numbers of the other until then; it may evaluate otherwise."""
    (_, lines), (_, others) = final(one), final(other)
    assert lines
    for line, there in zip(lines, others, strict=False):
        for name in line.keys() - {"evaluation", "evaluation_after", "evaluation_before"}:
            assert line[name] == pytest.approx(there[name], abs=1e-3), f"{one}: {name} {line}"
    folders = Path(one) / "lake", Path(other) / "lake"
    if folders[1].exists():
        with Lake.open(folders[0]) as lake, Lake.open(folders[1]) as whole:
            assert len(lake) >= lines[0]["step"]
            for a, b in zip(lake.steps(0, len(lake)), whole.steps(0, len(lake)), strict=True):
                assert isinstance(a, dict) or (np.asarray(a) == np.asarray(b)).all()


def assert_same_lake(run, other_run):
    with Lake.open(run / "lake") as one, Lake.open(other_run / "lake") as other:
        assert len(one) == len(other)
        for a, b in zip(one.steps(0, len(one)), other.steps(0, len(other)), strict=True):
            assert isinstance(a, dict) or (np.asarray(a) == np.asarray(b)).all()


def stop_and_go_on(trainer, config, folder, whole):
    with pytest.raises(Stopped):
        trainer.run(config, folder, tell=stop_after(2))
    assert max(Run.open(folder).checkpoints()) < max(Run.open(whole).checkpoints())
    trainer.run(config, folder)
    assert_same(whole, folder)


def test_a_single_agent_that_was_stopped_ends_with_the_same_bits(tmp_path, whole_single):
    stop_and_go_on(single, SINGLE, tmp_path / "stopped", whole_single)


def test_seeds_in_one_program_end_with_the_bits_of_each_alone_and_are_ordinary_runs(tmp_path, whole_single):
    folder, alone = tmp_path / "seeds", tmp_path / "alone"
    first, second = folder / "seed-0", folder / "seed-1"
    with pytest.raises(Stopped):
        single.run(SINGLE, folder, seeds=2, tell=stop_after(4))
    assert [max(Run.open(each).checkpoints()) for each in (first, second)] == [2, 1]  # the first is ahead
    lines = []
    found = single.run(SINGLE, folder, seeds=2, tell=lines.append)
    assert [line.split(",")[0] for line in lines[:2]] == [
        "seed-0 resuming from checkpoint 2",
        "seed-1 resuming from checkpoint 1",
    ]
    single.run(replace(SINGLE, seed=1), alone)
    assert_same(first, whole_single)
    assert_same(second, alone)
    assert final(first)[0] != final(second)[0]
    assert Run.open(second).config["seed"] == 1
    assert found["seed-1"]["evaluation"] == list(Run.open(second).history())[-1]["evaluation"]
    assert len(play(second, most_steps=5).observations) > 2
    single.run(replace(SINGLE, seed=1), second, resume_from=3)  # one of them resumes by itself
    assert_same(second, alone)


def test_seeds_that_replay_have_a_lake_each_and_push_to_a_place_each(tmp_path, whole_replaying):
    url = f"file://{tmp_path}/bucket"
    single.run(replace(REPLAYING, push_to=url), tmp_path / "seeds", seeds=2)
    for name in ("seed-0", "seed-1"):
        pull_run(tmp_path / "pulled" / name, Cloud.of(f"{url}/{name}"))
        assert_same(tmp_path / "seeds" / name, tmp_path / "pulled" / name)
    assert_same(tmp_path / "seeds" / "seed-0", whole_replaying)
    assert_same_lake(tmp_path / "seeds" / "seed-0", whole_replaying)
    assert final(tmp_path / "seeds" / "seed-1")[0] != final(whole_replaying)[0]


def test_a_live_run_that_was_stopped_ends_with_the_same_bits_lake_included(tmp_path, whole_live):
    stop_and_go_on(live, LIVE, tmp_path / "stopped", whole_live)
    assert_same_lake(tmp_path / "stopped", whole_live)


def test_a_big_agent_that_acts_and_replays_resumes_with_the_same_bits_and_is_cloned(tmp_path, whole_acts):
    stop_and_go_on(live, ACTS, tmp_path / "stopped", whole_acts)
    made = live.build(ACTS)
    state = made.init(jax.random.PRNGKey(0))
    found = Run.open(whole_acts).load(like={"all": state}).arrays["all"]
    assert int(found.iterations) == 10  # the agents are cloned after every second one
    for four, one in zip(*map(jax.tree.leaves, (found.agents.params, found.big.params)), strict=True):
        assert (np.asarray(four) == np.asarray(one)).all()
    last = list(Run.open(whole_acts).history())[-1]
    own = ACTS.big_pqn
    assert (own.envs, own.minibatches, own.epochs) == (4, 2, 5)  # each of 5 x 64 steps once
    assert last["big_updates"] == 10 * 2 * 5
    assert last["samples"] == ACTS.env_steps * 4 // 5 * 2 + ACTS.env_steps
    three, _ = live.train(made, state, 3)
    pairs = zip(*map(jax.tree.leaves, (three.agents.params, three.big.params)), strict=True)
    assert any((np.asarray(four) != np.asarray(one)).any() for four, one in pairs)  # in between they differ


def test_the_lake_of_a_live_run_holds_the_steps_of_all_five_in_their_order(tmp_path, whole_live):
    with Lake.open(whole_live / "lake") as lake:
        lake.verify()
        assert len(lake) == LIVE.env_steps
        envs, each = LIVE.pqn.envs, LIVE.env_steps // 20
        for stream in (0, envs, 4 * envs, 4 * envs + LIVE.big_envs - 1):  # the last are the big agent's
            ids = lake.query(stream=stream)
            assert len(ids) == each
            steps = [lake.steps(int(i), int(i) + 1) for i in ids]
            assert {int(step.stream[0]) for step in steps} == {stream}
            for one, then in itertools.pairwise(steps):
                if not (one.terminated[0] or one.truncated[0]):
                    assert (one.next_obs[0] == then.obs[0]).all()
        with pytest.raises(UnknownStream):
            lake.query(stream=4 * envs + LIVE.big_envs)
    live.run(replace(LIVE, lake=False), tmp_path / "run")
    assert not (tmp_path / "run" / "lake").exists()
    with_pond, without = arrays_of(tmp_path / "run"), arrays_of(whole_live)
    assert with_pond.pop("pond.rows").any()  # the others are in the lake
    jax.tree.map(np.testing.assert_array_equal, with_pond, without)  # pouring changes nothing else


TESTS = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
KILLED = """
import os, signal, sys
sys.path[:0] = {tests!r}
import test_games

children = []
for name, (trainer, config, lines) in test_games.KILLED_AFTER.items():
    if (child := os.fork()) == 0:
        seen = []
        def tell(line):
            seen.append(line)
            if len(seen) == lines:
                os.kill(os.getpid(), signal.SIGKILL)
        trainer(config, os.path.join({folder!r}, name), tell=tell)
        os._exit(0)
    children.append(child)
print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
"""
KILLED_AFTER = {"mixture": (mixture.run, MIXTURE, 5), "single": (single.run, REPLAYING, 3)}


def test_killed_a_mixture_and_a_replaying_agent_end_with_the_same_bits_lake_included(
    tmp_path, whole, whole_replaying
):
    code = KILLED.format(tests=TESTS, folder=str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.stdout == f"{[-int(signal.SIGKILL)] * 2}\n", done.stderr[-2_000:]
    for name, other in {"mixture": whole, "single": whole_replaying}.items():
        folder = tmp_path / name
        assert 0 < len(Run.open(folder).checkpoints()) < len(Run.open(other).checkpoints())
        trainer, config, _ = KILLED_AFTER[name]
        trainer(config, folder)
        assert_same(folder, other)
        assert_same_lake(folder, other)
    assert_totals(tmp_path / "single")


FOUR_DEVICES = """
import os, sys
sys.path[:0] = {tests!r}
import jax
import test_games

assert jax.device_count() == 4
test_games.fleet.accelerated = lambda: True  # the branches for accelerators as well
for name, (trainer, config, how, lines) in test_games.ON_FOUR_DEVICES.items():
    try:
        trainer(config, os.path.join({folder!r}, name), tell=test_games.stop_after(lines), **how)
    except test_games.Stopped:
        pass
"""
SHORT = {"evaluation_steps": 20, "evaluation_greedy": False}  # only training is compared
ON_FOUR_DEVICES = {
    "seeds": (single.run, replace(SINGLE, **SHORT), {"seeds": 2}, 2),
    "mixture": (mixture.run, replace(MIXTURE, **SHORT), {}, 4),  # 3 is the reset
    "live": (live.run, replace(LIVE, **SHORT), {}, 2),
    "acts": (live.run, replace(ACTS, **SHORT), {}, 1),  # within it the agents are cloned
    "replaying": (single.run, replace(REPLAYING, **SHORT), {}, 2),
}


def test_on_four_accelerators_whole_runs_find_the_numbers_of_one_cpu(
    tmp_path, whole_single, whole, whole_live, whole_acts, whole_replaying
):
    code = FOUR_DEVICES.format(tests=TESTS, folder=str(tmp_path))
    given = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=4"
    flags = {"XLA_FLAGS": given, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        timeout=900,
        env={**os.environ, **flags},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    wholes = {"mixture": whole, "live": whole_live, "acts": whole_acts, "replaying": whole_replaying}
    for name, other in {"seeds/seed-0": whole_single, **wholes}.items():
        assert_close_so_far(tmp_path / name, other)


def test_a_replaying_agent_has_all_its_steps_in_the_lake_and_counts_the_same_samples(whole_replaying):
    with Lake.open(whole_replaying / "lake") as lake:
        lake.verify()
        assert len(lake) == REPLAYING.env_steps
        assert len(lake.query(stream=REPLAYING.pqn.envs - 1)) == REPLAYING.env_steps // REPLAYING.pqn.envs
    lines = list(Run.open(whole_replaying).history())
    assert lines[-1]["samples"] == REPLAYING.env_steps * REPLAYING.pqn.epochs
    assert_totals(whole_replaying)
    found = compare.result_of(whole_replaying)["seconds"]
    totals = Run.open(whole_replaying).state()["seconds"]
    assert found == {f"seconds_{name}": round(spent, 3) for name, spent in totals.items()}
    assert all(np.isfinite(line["loss"]) for line in lines)


def test_a_replaying_agent_s_lake_is_limited_and_pushed(tmp_path, monkeypatch):
    url = f"file://{tmp_path}/bucket/run"
    config = replace(
        REPLAYING, env_steps=1_024, evaluate_every=256, keep_every=0, push_to=url, max_steps=600, keep_last=1
    )
    single.run(config, tmp_path / "run")
    with Lake.open(tmp_path / "run" / "lake") as lake:
        assert len(lake) == 600
        assert lake.commit.recorded == 1_024
    run = Run.open(tmp_path / "run")
    named = {run.state(number)["lake_commit"] for number in run.checkpoints()}
    commits = {int(file.stem) for file in (tmp_path / "run" / "lake" / "commits").glob("*.json")}
    assert commits == named - {None}
    assert len(commits) < 4
    pull_run(tmp_path / "pulled", Cloud.of(url))
    assert_same(tmp_path / "run", tmp_path / "pulled")
    monkeypatch.setattr(loop.stopping, "sleep", stop_after(1))  # it waits for space
    with pytest.raises(Stopped):
        single.run(replace(REPLAYING, min_free="1000TB"), tmp_path / "full")


KILLED_EARLY = """
import os, signal, sys
sys.path[:0] = {tests!r}
import test_games

def kill(event, args):
    # the first commit is durable, the checkpoint that names it is not
    if event == "os.rename" and str(args[1]).endswith("checkpoints/00000001"):
        os.kill(os.getpid(), signal.SIGKILL)

children = []
for name, (trainer, config) in test_games.WITH_A_LAKE.items():
    if (child := os.fork()) == 0:
        sys.addaudithook(kill)
        trainer(config, os.path.join({folder!r}, name), start_over=True)
        os._exit(0)
    children.append(child)
print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
"""
WITH_A_LAKE = {
    "single": (single.run, REPLAYING),
    "mixture": (mixture.run, MIXTURE),
    "live": (live.run, LIVE),
    "erl": (erl.train, replace(TINY, generations=2)),
}


def test_killed_between_the_first_commit_and_its_checkpoint_all_end_with_the_same_bits(
    tmp_path, whole, whole_live, whole_replaying
):
    spec = lp.Spec(obs=lp.Field((2,), "float32"))
    for name in WITH_A_LAKE:  # in a folder in which somebody recorded, from which they start over
        with lp.Replay.open(tmp_path / name / "lake", spec, 1_000) as replay:
            for step in range(199):
                obs = np.full(2, step, np.float32)
                replay.record(obs=obs, action=0, reward=step, next_obs=obs, terminated=False, truncated=False)
            replay.commit()
    code = KILLED_EARLY.format(tests=TESTS, folder=str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=500, check=False
    )
    assert done.stdout == f"{[-int(signal.SIGKILL)] * 4}\n", done.stderr[-2_000:]
    for name, (trainer, config) in WITH_A_LAKE.items():
        assert Run.open(tmp_path / name).checkpoints() == [0]
        assert (tmp_path / name / "lake" / "commits" / "0000000000.json").exists()
        trainer(config, tmp_path / name, **({"resume": True} if name == "erl" else {}))
        (old,) = (tmp_path / name).glob("old-*")
        with Lake.open(old / "lake") as lake:
            assert lake.steps(0, 199).reward.tolist() == list(range(199))
    for name, other in {"mixture": whole, "live": whole_live, "single": whole_replaying}.items():
        assert_same(tmp_path / name, other)
        assert_same_lake(tmp_path / name, other)
    erl.train(WITH_A_LAKE["erl"][1], tmp_path / "straight")
    assert fingerprint(tmp_path / "erl") == fingerprint(tmp_path / "straight")


def test_the_lake_of_a_mixture_is_an_ordinary_one_and_knows_its_agents(whole):
    with Lake.open(whole / "lake") as lake:
        lake.verify()
        assert len(lake) == MIXTURE.env_steps
        envs = MIXTURE.pqn.envs
        for agent in range(MIXTURE.agents):
            ids = np.concatenate([lake.query(stream=agent * envs + env) for env in range(envs)])
            assert len(ids) == MIXTURE.env_steps // MIXTURE.agents
        batch = lake.sample(64, rng=np.random.default_rng(0))
        assert batch.obs.shape == (64, 10, 10, 4)
        assert batch.obs.max() == 1


def test_resets_are_logged_with_what_was_before_and_after(whole):
    lines = list(Run.open(whole).history())
    resets = [line for line in lines if "reset" in line]
    assert [line["step"] for line in resets] == [1_024, 2_048]
    for number, line in enumerate(resets):
        assert line["lake_steps"] == line["step"]
        assert line["big_pond_steps"] == min(line["step"], MIXTURE.big_pond)
        assert line["big_steps"] == round(
            MIXTURE.big_replay_ratio * line["big_pond_steps"] / MIXTURE.big_batch
        )
        assert {"evaluation_before", "evaluation_after", "evaluation_greedy_after"} <= line.keys()
        assert line["reset"] == number + 1
    curve = [line for line in lines if "reset" not in line]
    assert all({"evaluation", "evaluation_greedy"} <= line.keys() for line in curve)
    assert [line["step"] for line in curve] == list(range(512, 3_073, 512))
    learned = sum(line["big_steps"] for line in resets) * MIXTURE.big_batch
    assert curve[-1]["samples"] == MIXTURE.env_steps * MIXTURE.pqn.epochs + learned


def test_a_big_agent_after_the_last_frame_is_the_policy(tmp_path):
    folder = tmp_path / "run"
    config = replace(
        MIXTURE, env_steps=2_048, reset_every=2_048, big_last=0.5, big_n_step=(4, 2), big_distill=0.1
    )
    mixture.run(config, folder)
    resets = [line for line in Run.open(folder).history() if "reset" in line]
    assert [line["step"] for line in resets] == [2_048]
    steps = round(0.5 * MIXTURE.big_pond / MIXTURE.big_batch)
    assert resets[0]["big_steps"] == steps
    assert resets[0]["samples"] == 2_048 * config.pqn.epochs + steps * MIXTURE.big_batch
    weights = mixture.build(config).pqn.network.init(np.array([0, 0], np.uint32))
    found = Run.open(folder).load(like={"big": weights, "policy": weights}).arrays
    same = jax.tree.map(lambda a, b: (a == b).all(), found["big"], found["policy"])
    assert all(jax.tree.leaves(same))


def test_the_counters_of_the_four_and_of_the_one_are_apart(whole_live):
    line = list(Run.open(whole_live).history())[1]
    assert line["step"] == 1_280
    assert line["agents_env_steps"] == 4 * 4 * 16 * 4
    assert line["big_env_steps"] == 4 * 16 * 4
    assert line["agents_updates"] == 4
    assert line["big_updates"] == 4 * round(LIVE.big_replay_ratio * 320 / LIVE.big_batch)


def test_every_checkpoint_opens_as_a_policy(whole):
    for number in Run.open(whole).checkpoints()[:2]:
        episode = play(whole, checkpoint=number, most_steps=50)
        assert episode.checkpoint == number
        assert episode.observations.shape[1:] == (10, 10, 4)
        assert len(episode.observations) > 2


def test_clones_are_the_big_agent_and_who_and_what_are_settings():
    for optimiser in ("fresh", "kept", "cloned"):
        settings = replace(MIXTURE, agents=4, clone_optimiser=optimiser, epsilon_reset=0.4)
        made = mixture.build(settings)
        agents = fleet.over_agents(made.pqn.init, jax.random.split(jax.random.PRNGKey(0), 4))
        agents = agents._replace(
            epsilon=jax.tree.map(lambda x: x + 5, agents.epsilon),
            optimiser=jax.tree.map(lambda x: x + 1, agents.optimiser),
        )
        big = made.dqn.init(made.pqn.network.init(jax.random.PRNGKey(9)))
        big = big._replace(optimiser=jax.tree.map(lambda x: x + 7, big.optimiser))
        after = mixture.clone_agents(made, agents, big)
        for new, theirs in zip(*map(jax.tree.leaves, (after.params, big.params)), strict=True):
            assert (new == theirs).all()
        assert np.asarray(after.epsilon.start).tolist() == pytest.approx([0.4] * 4)
        assert after.env is agents.env
        adam = lambda state: isinstance(state, optax.ScaleByAdamState)  # noqa: E731
        moments = [s for s in jax.tree.leaves(after.optimiser, is_leaf=adam) if adam(s)]
        counts = {"fresh": 0, "kept": 1, "cloned": 7}[optimiser]
        assert np.asarray(moments[0].count).tolist() == [counts] * 4


def test_the_agent_with_the_best_training_scores_can_be_cloned_without_learning(tmp_path, monkeypatch):
    """The control `clone-best`; the scores count from the last reset, not from the last evaluation."""
    seen, clone_agents, parts, train_agents = [], mixture.clone_agents, [], mixture.train_agents

    def train(*args):
        found = train_agents(*args)
        parts.append((np.array(found[-1].score, float), np.array(found[-1].episodes)))
        return found

    def clone(made, agents, big):
        seen.append(jax.tree.map(np.array, (agents.params, big.params)))
        return clone_agents(made, agents, big)

    monkeypatch.setattr(mixture, "clone_agents", clone)
    monkeypatch.setattr(mixture, "train_agents", train)
    monkeypatch.setattr(mixture, "fill_big_pond", None)  # nothing is read from the lake
    config = replace(MIXTURE, env_steps=2_048, evaluate_every=512, big_replay_ratio=0.0)
    mixture.run(config, tmp_path / "run")
    lines = list(Run.open(tmp_path / "run").history())
    (reset,) = [line for line in lines if "reset" in line]
    before = next(line for line in lines if line["step"] == reset["step"] == 1_024)
    end = [line for line in lines if "evaluation" in line][-1]
    for line, some in ((before, parts[:3]), (end, parts[3:])):  # of 2, 1 and 1 updates, and of 2 and 2
        scores, episodes = (np.sum(each, 0) for each in zip(*some, strict=True))
        assert episodes.sum() > 0
        assert line["score_agents"] == pytest.approx((scores / np.maximum(episodes, 1)).tolist())
    assert reset["evaluation_before"] == before["evaluation"]
    assert reset["samples"] == before["samples"]
    assert "big_steps" not in reset
    ((agents, big),) = seen
    best = fleet.pick(agents, int(np.argmax(before["score_agents"])))
    assert all((x == y).all() for x, y in zip(*map(jax.tree.leaves, (best, big)), strict=True))


@pytest.mark.parametrize(("trainer", "config"), [(mixture, MIXTURE), (live, LIVE)])
def test_limits_of_the_lake_and_the_place_to_push_to_are_settings(tmp_path, trainer, config, monkeypatch):
    pushed = tmp_path / "pushed"
    few = replace(config, max_steps=1_000, keep_last=1, keep_every=0, push_to=f"file://{pushed}")
    trainer.run(few, tmp_path / "run")
    with Lake.open(tmp_path / "run" / "lake") as lake:
        lake.verify()
        assert len(lake) == 1_000
        assert lake.commit.recorded == config.env_steps
    commits = list((tmp_path / "run" / "lake" / "commits").glob("*.json"))
    assert len(commits) <= 5  # of 8 or more: the newest, and those of the last three checkpoints
    assert Run.open(pushed).checkpoints()[-1] == Run.open(tmp_path / "run").checkpoints()[-1]
    monkeypatch.setattr(loop, "FINAL_SECONDS", 0.0)
    monkeypatch.setattr(loop, "RETRY_SECONDS", 0.0)
    if trainer is live:  # a mixture waits for space before its first reset
        with pytest.raises(RunNotSaved, match="could not be saved"):
            live.run(replace(config, min_free="1000000TB"), tmp_path / "full")


def test_a_mixture_resumes_from_the_checkpoint_that_is_named(tmp_path, whole):
    shutil.copytree(whole, tmp_path / "run")
    last = mixture.run(MIXTURE, tmp_path / "run")  # it has ended: nothing changes
    assert last["evaluation"] == list(Run.open(whole).history())[-1]["evaluation"]
    mixture.run(MIXTURE, tmp_path / "run", resume_from=2)
    assert_same(tmp_path / "run", whole)
    assert_same_lake(tmp_path / "run", whole)
    with pytest.raises(RunNotFound, match="has no run to resume"):
        mixture.run(MIXTURE, tmp_path / "nothing", resume=True)


def test_on_atari_frames_of_the_emulator_are_reported_beside_steps():
    config = live.PRESETS["atari"]
    assert arena.emulator_frames(config, 1_000) == {"emulator_frames": 4_000}
    assert arena.progress(config, 1_000) == "     1,000 steps (4,000 frames)"
    assert arena.emulator_frames(LIVE, 1_000) == {}
    assert arena.progress(LIVE, 1_000) == "     1,000 steps"
    assert arena.make_env(replace(config, frame_stack=3)).obs.shape == (3, 84, 84)


def test_what_cannot_be_is_told_in_a_sentence(tmp_path, whole):
    with pytest.raises(ConfigError, match="env_steps is 100, less than evaluate_every, which is 512"):
        single.run(replace(SINGLE, env_steps=100), tmp_path / "a")
    with pytest.raises(ConfigError, match="less than one update"):
        single.run(replace(SINGLE, evaluate_every=5), tmp_path / "b")
    with pytest.raises(ConfigError, match="did you mean Breakout"):
        single.run(replace(SINGLE, game="brakeout"), tmp_path / "c")
    with pytest.raises(ConfigError, match="not a multiple of an agent's update"):
        mixture.run(replace(MIXTURE, pond=100), tmp_path / "d")
    with pytest.raises(ConfigError, match="less than a rollout"):
        live.run(replace(LIVE, big_pond=20), tmp_path / "f")
    with pytest.raises(ConfigError, match="big_alpha needs big_learner dqn"):
        live.run(replace(LIVE, big_learner="pqn"), tmp_path / "f")
    with pytest.raises(RunMismatch, match="run of the trainer 'mixture', not 'single'"):
        single.run(SINGLE, whole)
    with pytest.raises(SpecError, match="room for"):
        live.run(replace(LIVE, big_pond=10**10, env_steps=3_200), tmp_path / "g")
    with pytest.raises(SpecError, match="room for"):  # the BigPond, which is needed only later
        mixture.run(replace(MIXTURE, big_pond=10**10, env_steps=10**10), tmp_path / "h")
    with pytest.raises(ConfigError, match=r"of shape \(4,\) are not images"):
        save_gif(np.zeros((3, 4), np.float32), tmp_path / "out.gif")
    assert not any((tmp_path / name / "config.json").exists() for name in "abcdfgh")


def test_an_evaluation_takes_the_epsilon_that_is_given():
    import jax

    env = arena.make_env(SINGLE)
    network = arena.network_of(SINGLE, env)
    params, key = network.init(jax.random.PRNGKey(1)), jax.random.PRNGKey(2)
    evaluate = arena.make_evaluate(env, network, 32, epsilon=0.5)
    usual, half, greedy = (
        np.asarray(evaluate(params, key, *given)).tolist() for given in ((), (0.5,), (0.0,))
    )
    assert usual == half != greedy
    metrics = arena.evaluated(evaluate, params, 0, greedy=True, named="_after")
    assert sorted(metrics) == ["evaluation_after", "evaluation_greedy_after"]
    assert sorted(arena.evaluated(evaluate, params, 0, greedy=False)) == ["evaluation"]


def test_config_files_say_what_was_run(whole):
    stored = json.loads((whole / "config.json").read_text())
    assert stored["trainer"] == "mixture"
    assert stored["config"]["pqn"]["envs"] == 4


def test_agents_learn_in_any_gymnasium_environment(tmp_path):
    metrics = single.run(replace(SINGLE, suite="gymnasium", game="CartPole-v1"), tmp_path / "single")
    assert metrics["evaluation"] >= 8  # a pole falls no sooner
    assert metrics["episodes"] > 0
    assert play(tmp_path / "single").observations.shape[1:] == (4,)


def test_a_mixture_on_a_host_s_environment_goes_on_with_new_episodes(tmp_path):
    settings = replace(MIXTURE, suite="gymnasium", game="cartpole-v1", env_steps=2_048)
    with pytest.raises(Stopped):
        mixture.run(settings, tmp_path / "run", tell=stop_after(4))
    metrics = mixture.run(settings, tmp_path / "run")
    assert metrics["evaluation"] >= 8
    with Lake.open(tmp_path / "run" / "lake") as lake:
        lake.verify()
        assert len(lake) == 2_048
        seen = lake.steps(0, 2_048)
        assert np.asarray(seen.obs).dtype == np.float32
        for stream in np.unique(
            seen.stream
        ).tolist():  # where an episode was lost, its last step is truncated
            one = lake.steps(lake.query(stream=stream))
            same = ~(one.terminated | one.truncated)[:-1]
            assert (one.next_obs[:-1][same] == one.obs[1:][same]).all()
