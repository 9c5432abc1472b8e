"""The runner of comparisons; training itself is tested with the trainers."""

import dataclasses
import json
import subprocess
import sys
import time
from pathlib import Path

import jax
import pytest

import lakepond
from lakepond.agents.settings import PQNSettings
from lakepond.errors import ConfigError
from lakepond.runs import Run
from lakepond.trainers import arena, compare, compare_workers, mixture, single
from lakepond.trainers.compare import ARMS, CompareConfig, Job
from lakepond.types import Field


@pytest.fixture(autouse=True)
def no_policy(monkeypatch):
    """The runs below have no policy to play with."""
    monkeypatch.setattr(compare, "final_score", lambda config, folder: 7.0)


def job(arm, folder):
    return Job("Breakout", arm, 3, folder)


def results(folder):
    return [json.loads(file.read_text()) for file in sorted(folder.glob("*/*/*/result.json"))]


@pytest.mark.parametrize("env_steps", [100_000, 1_000_000, 5_000_000])
def test_every_arm_has_the_same_frames_and_its_own_difference(tmp_path, env_steps):
    config = CompareConfig(env_steps=env_steps, learning_rate=1e-3)
    found = {arm: compare.arm_settings(config, job(arm, tmp_path))[0] for arm in ARMS}
    update = PQNSettings().update_steps
    each = env_steps // 16 // update * update
    total = 16 * each
    assert {settings.env_steps for settings in found.values()} == {total}
    assert {settings.evaluate_every for arm, settings in found.items() if arm != "live"} == {each}
    assert found["mixture"].reset_every == 4 * each  # so an evaluation is right before each reset
    assert {settings.seed for settings in found.values()} == {3}
    assert {settings.pqn.learning_rate for settings in found.values()} == {1e-3}
    assert not found["apart"].share
    assert found["single-fresh"] == dataclasses.replace(found["single-epochs"], recompute_targets=True)
    lake = {"replay_share": 0.5, "replay_pond": 2 * total}
    assert found["single-lake"] == dataclasses.replace(found["single-epochs"], **lake)
    assert found["single-newest"] == dataclasses.replace(found["single-lake"], replay_newest=total // 5)
    assert found["single-rewarded"] == dataclasses.replace(found["single-lake"], replay_rewarded=0.5)
    per_checkpoint = each * found["single-lake"].checkpoint_every
    memory = single.make_memory(
        Field((2,), "int32"), found["single-lake"].pqn, 2 * total, total, per_checkpoint
    )
    assert memory.filled.capacity == total  # all steps of the lake, not a sample of them
    acts = found["mixture-acts"]
    assert acts.big_steps == acts.agents_steps == found["single"].pqn.update_steps // 2
    per_step = acts.pqn.epochs / 2 + acts.big_pqn.epochs / 2
    assert per_step == found["single-epochs"].pqn.epochs
    four = dataclasses.replace(found["single"].pqn, epochs=4)
    assert found["single-epochs-4"] == dataclasses.replace(found["single"], pqn=four)
    assert found["clone-best"] == dataclasses.replace(found["mixture"], big_replay_ratio=0.0)
    assert found["single-resets"].agents == 1
    assert found["single-resets"].pqn == found["single"].pqn
    assert found["mixture-last"].big_last == found["mixture-last"].big_replay_ratio == 8.0
    assert found["mixture-last"].pqn.epochs == found["single-epochs"].pqn.epochs == 8
    mixed = found["mixture"]
    assert mixed.agents * mixed.pqn.update_steps == found["single"].pqn.update_steps
    filled = [min(mixed.big_pond, mixed.reset_every * i) for i in (1, 2, 3)]  # with the Lake so far
    resets = sum(mixed.big_replay_ratio * steps for steps in filled)
    samples = mixed.env_steps * mixed.pqn.epochs + resets
    assert found["single-epochs"].env_steps * found["single-epochs"].pqn.epochs == samples


def test_runs_are_ordered_so_that_what_is_done_is_fair(tmp_path):
    config = CompareConfig(games=("breakout", "Freeway"), arms=("single", "mixture"), seeds=2)
    order = [(j.seed, j.game, j.arm) for j in compare.jobs(config, tmp_path)]
    assert order[:4] == [
        (0, "Breakout", "single"),
        (0, "Breakout", "mixture"),
        (0, "Freeway", "single"),
        (0, "Freeway", "mixture"),
    ]
    assert len(order) == 8
    later = compare.jobs(dataclasses.replace(config, first_seed=100), tmp_path)
    assert [j.seed for j in later] == [100] * 4 + [101] * 4


def test_each_run_is_done_once_and_another_start_goes_on(tmp_path, monkeypatch):
    done = []

    def train(settings, folder, loggers):
        done.append(folder.parts[-3:])
        with Run.create(folder, "single", settings, loggers=loggers) as run:
            for step in (10, 20, 30, 40):
                run.log(step, {"evaluation": step / 10, "samples": 2 * step, "gradient_steps": step})
        if len(done) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(compare.single, "run", train)
    config = CompareConfig(games=("Breakout",), arms=("single",), seeds=3)
    with pytest.raises(KeyboardInterrupt):
        compare.run(config, tmp_path)
    assert compare.run(config, tmp_path, loggers=("tensorboard",)) == 0
    assert [seed for *_, seed in done] == ["0", "1", "1", "2"]
    boards = sorted(tmp_path.glob("Breakout/single/*/tensorboard/events.out.*"))
    assert [board.parts[-3] for board in boards] == ["1", "2"]  # seed 0 was done before
    assert compare.run(config, tmp_path) == 0
    assert len(done) == 4
    found = results(tmp_path)
    assert [r["seed"] for r in found] == [0, 1, 2]
    assert found[0]["score"] == 7.0
    assert found[0]["curve"][-1] == [40, 4.0]
    assert found[0]["seconds"]["cpu"] >= 0


TRAINED = CompareConfig(games=("Breakout",), arms=("single",), seeds=3)
OTHER = """
import sys
sys.path.insert(0, {tests!r})
import test_compare
test_compare.other_process({folder!r}, {at!r})
"""


def train(settings, folder, loggers):
    """As the trainers: without a checkpoint the log is cut; each run that is done adds a line to `done`."""
    with Run.create(folder, "single", settings) as run:
        run.rewind(run.load(like={}) if run.checkpoints() else None)
        for step in (10, 20, 30):
            run.log(step, {"evaluation": step, "samples": 2 * step, "gradient_steps": step})
        run.save(3, {}, {})
    with (folder.parent / "done").open("a") as file:
        file.write(f"{folder.name}\n")


def other_process(folder, at):
    """Do all runs; stop at `at` until the test continues: during training, or right after it."""
    folder = Path(folder)

    def wait():
        (folder / "waiting").touch()
        while not (folder / "continue").exists():
            time.sleep(0.01)

    def training(settings, run_folder, loggers):
        if at == "training":
            wait()
        train(settings, run_folder, loggers)

    compare.single.run = training
    compare.final_score = lambda config, folder: 7.0
    compare.programs.forget = wait if at == "trained" else lambda: None
    assert compare.run(TRAINED, folder) == 0


def start_other(folder, at):
    code = OTHER.format(tests=str(Path(__file__).parent), folder=str(folder), at=at)
    other = subprocess.Popen([sys.executable, "-c", code])
    while not (folder / "waiting").exists():
        assert other.poll() is None
        time.sleep(0.01)
    return other


def log_of(folder):
    return [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("at", ["training", "trained"])
def test_a_run_that_another_process_is_about_to_finish_is_not_done_again(at, tmp_path, monkeypatch):
    monkeypatch.setattr(compare.single, "run", train)
    other = start_other(tmp_path, at)
    try:
        assert compare.run(TRAINED, tmp_path) == 1  # seed 0 is being done; 1 and 2 were done here
    finally:
        (tmp_path / "continue").touch()
        assert other.wait(60) == 0
    arm = tmp_path / "Breakout" / "single"
    assert sorted((arm / "done").read_text().split()) == ["0", "1", "2"]
    assert [log_of(arm / seed) for seed in "012"] == [[10, 20, 30]] * 3
    assert [r["seed"] for r in results(tmp_path)] == [0, 1, 2]


def test_a_run_that_was_done_since_the_list_was_made_is_not_done_again(tmp_path, monkeypatch):
    def others_first(settings, folder, loggers):
        if folder.name == "0":  # while this process does the first, another does the rest
            monkeypatch.setattr(compare.single, "run", train)
            assert compare.run(TRAINED, tmp_path) == 1
        train(settings, folder, loggers)

    monkeypatch.setattr(compare.single, "run", others_first)
    assert compare.run(TRAINED, tmp_path) == 0
    arm = tmp_path / "Breakout" / "single"
    assert sorted((arm / "done").read_text().split()) == ["0", "1", "2"]
    assert [log_of(arm / seed) for seed in "012"] == [[10, 20, 30]] * 3


def test_checkpoints_that_a_crash_left_beside_a_result_are_removed_by_the_next_process(tmp_path, monkeypatch):
    monkeypatch.setattr(compare.single, "run", train)

    def crash(line):
        raise SystemError(line)

    with pytest.raises(SystemError, match="Breakout single seed 0"):  # reported when the result is written
        compare.run(TRAINED, tmp_path, tell=crash)
    arm = tmp_path / "Breakout" / "single"
    assert (arm / "0" / "result.json").exists()
    assert (arm / "0" / "checkpoints").exists()
    assert compare.run(TRAINED, tmp_path) == 0
    assert not list(arm.glob("*/checkpoints"))
    assert (arm / "done").read_text().split() == ["0", "1", "2"]
    assert log_of(arm / "0") == [10, 20, 30]


def test_recovery_is_counted_from_the_reset_to_the_level_before_it():
    curve = [(10, 5.0), (20, 3.0), (30, 4.8), (40, 5.5)]
    reset = {"step": 10, "evaluation_before": 5.0, "evaluation_after": 2.0}
    found = compare._recovered(reset, curve)
    assert (found["recovery"], found["recovery_95"]) == (30, 20)
    assert compare._recovered({**reset, "evaluation_after": 5.1}, curve)["recovery"] == 0
    found = compare._recovered({**reset, "evaluation_before": 5.7}, curve)
    assert (found["recovery"], found["recovery_95"]) == (None, 30)  # 5.5 of 5.415


def test_the_score_of_every_arm_is_that_of_the_policy_that_its_run_ends_with(tmp_path, monkeypatch):
    monkeypatch.undo()
    game = {"hidden": (8,), "evaluation_episodes": 4, "env_steps": 2_048, "evaluate_every": 1_024}
    pqn = PQNSettings(envs=4, rollout=16, minibatches=2)
    config = mixture.MixtureConfig(**game, reset_every=2_048, pond=64, pqn=pqn, big_last=0.5, big_batch=64)
    mixture.run(config, tmp_path / "run")
    score = compare.final_score(config, tmp_path / "run")
    env = arena.make_env(config)
    network = arena.network_of(config, env)
    big = Run.open(tmp_path / "run").load(like={"big": network.init(jax.random.PRNGKey(0))}).arrays["big"]
    evaluate = arena.make_evaluate(env, network, 12, epsilon=config.evaluation_epsilon)
    assert score == evaluate(big, compare.final_key(config.seed)).mean()
    assert (compare.final_key(0) != compare.final_key(1)).any()  # other episodes for another seed
    found = compare.result_of(tmp_path / "run")
    (reset,) = [line for line in Run.open(tmp_path / "run").history() if "reset" in line]
    assert found["samples"] == reset["samples"] > 2_048 * pqn.epochs
    in_turn = 2_048 // (4 * 64) * pqn.epochs * pqn.minibatches  # four agents side by side, 64 steps an update
    assert found["gradient_steps"] == in_turn + reset["big_steps"]
    assert found["resets"] == []  # nothing could recover after the last step


def test_a_folder_is_one_comparison(tmp_path):
    compare.settle(CompareConfig(), tmp_path)
    compare.settle(CompareConfig(seeds=9, arms=("single",)), tmp_path)  # these may change
    file = tmp_path / "settings.json"
    # as earlier versions wrote it
    older = json.loads(
        file.read_text().replace('"env_steps"', '"frames"').replace('"reset_parts"', '"portions"')
    )
    del older["first_seed"], older["learning_rate"]
    file.write_text(json.dumps(older))
    compare.settle(CompareConfig(), tmp_path)
    with pytest.raises(
        ConfigError, match=r"comparison with env_steps=524288, not 1000000; choose another folder"
    ):
        compare.settle(CompareConfig(env_steps=1_000_000), tmp_path)
    with pytest.raises(ConfigError, match=r"comparison with reset_parts=4, not 2"):
        compare.settle(CompareConfig(reset_parts=2), tmp_path)


def test_a_result_of_other_settings_is_not_counted_as_done(tmp_path, monkeypatch):
    monkeypatch.setattr(compare.single, "run", train)
    config = dataclasses.replace(TRAINED, seeds=1)
    compare.run(config, tmp_path)
    file = tmp_path / "Breakout" / "single" / "0" / "result.json"
    result = json.loads(file.read_text())
    assert result["settings"]["pqn.epochs"] == 2
    assert result["lakepond"] == lakepond.__version__
    del result["settings"]["frame_stack"]  # a setting that came later: its default
    file.write_text(json.dumps(result))
    compare.run(config, tmp_path)
    result["settings"]["pqn.epochs"] = 3
    file.write_text(json.dumps(result))
    wanted = r"result.json was made with pqn.epochs=3, not 2; delete .*/single/0 to do it again, or"
    with pytest.raises(ConfigError, match=wanted):
        compare.run(config, tmp_path)
    del result["settings"]
    file.write_text(json.dumps(result))
    with pytest.raises(ConfigError, match="does not say with which settings it was made; delete"):
        compare.run(config, tmp_path)


def test_arms_may_have_a_learning_rate_of_their_own(tmp_path):
    config = CompareConfig(rates=("mixture=0.001", "single-lake=0.00025"))
    found = {arm: compare.arm_settings(config, job(arm, tmp_path))[0] for arm in ARMS}
    rates = {arm: settings.pqn.learning_rate for arm, settings in found.items()}
    assert rates == dict.fromkeys(ARMS, 5e-4) | {"mixture": 1e-3, "single-lake": 2.5e-4}
    big = mixture.MixtureConfig().big_learning_rate
    assert found["mixture"].big_learning_rate == 2 * big  # DQN of the BigAgent is tuned as well
    assert found["clone-best"].big_learning_rate == found["live"].big_learning_rate == big
    compare.settle(config, tmp_path)
    with pytest.raises(ConfigError, match="is a comparison with rates="):
        compare.settle(CompareConfig(), tmp_path)
    for wrong in ("mixture", "mixture=fast", "mixture=0", "=0.001"):
        with pytest.raises(ConfigError, match=r"give ARM=RATE|there is no arm ''"):
            compare.jobs(CompareConfig(rates=(wrong,)), tmp_path)


def test_settings_and_results_that_are_not_finite_are_strict_json(tmp_path, monkeypatch):
    def refused(constant):
        raise AssertionError(f"{constant} is not JSON")

    monkeypatch.setattr(compare.single, "run", train)
    monkeypatch.setattr(compare, "final_score", lambda config, folder: float("nan"))
    config = dataclasses.replace(TRAINED, seeds=1)
    assert compare.run(config, tmp_path) == 0
    job = compare.jobs(config, tmp_path)[0]
    config = dataclasses.replace(config, learning_rate=float("inf"))  # no run could have it
    file = tmp_path / "other" / "settings.json"
    compare.settle(config, file.parent)
    assert json.loads(file.read_text(), parse_constant=refused)["learning_rate"] == "Infinity"
    (result,) = results(tmp_path)
    assert json.loads((job.folder / "result.json").read_text(), parse_constant=refused) == result
    assert result["score"] == "NaN"
    compare_workers._write_result(job, {**result, "score": float("nan")})
    assert list(results(tmp_path)) == [result]
    file.write_text(file.read_text().replace('"Infinity"', "Infinity"))  # as earlier versions wrote it
    compare.settle(config, file.parent)


def test_what_cannot_be_is_told(tmp_path):
    with pytest.raises(ConfigError, match="there is no arm"):
        compare.jobs(CompareConfig(arms=("double",)), tmp_path)
    with pytest.raises(ConfigError, match=r"16 evaluations cannot be divided into 3 parts .*; take 18"):
        compare.arm_settings(CompareConfig(reset_parts=3), job("single", tmp_path))
    with pytest.raises(ConfigError, match="100 steps are too few for 16 evaluations; take at least 65,536"):
        compare.arm_settings(CompareConfig(env_steps=100), job("single", tmp_path))
