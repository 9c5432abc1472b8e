"""Real signals to trainers: none is lost, also not inside a JAX callback, and the run is resumed exactly."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest
from test_games import LIVE, MIXTURE, SINGLE, assert_same, assert_same_lake
from tiny_market import TINY

from faults.training import fingerprint
from lakepond import stopping
from lakepond.envs import gymnasium
from lakepond.stopping import Terminated, terminate_as_interrupt
from lakepond.trainers import erl, live, mixture, single


def send(signum):
    """Send this process a signal, unless that would end it."""
    assert signal.getsignal(signum) not in (signal.SIG_DFL, None), (
        f"no handler; deferred: {stopping._deferred}"
    )
    os.kill(os.getpid(), signum)


def test_sigterm_inside_a_jax_callback_ends_the_run_and_it_can_be_resumed(tmp_path, monkeypatch, capfd):
    step, calls = gymnasium._Copies.step, []

    def signalled(self, action):
        calls.append(threading.current_thread() is threading.main_thread())
        if len(calls) == at:
            send(signal.SIGTERM)
        return step(self, action)

    monkeypatch.setattr(gymnasium._Copies, "step", signalled)
    config = replace(SINGLE, suite="gymnasium", game="CartPole-v1", evaluation_greedy=False)
    draw = random.Random(7)
    stops = 0
    for first, last in ((1, 64), (65, 72)):  # in a portion, and in the evaluation that follows it
        calls.clear()
        at = draw.randint(first, last)
        with terminate_as_interrupt(), pytest.raises(Terminated):
            single.run(config, tmp_path / "run")
        stops += 1
    at = 0
    assert single.run(config, tmp_path / "run")["evaluation"] >= 8
    assert capfd.readouterr().err.count("stopping after this portion") == stops == 2


@pytest.mark.parametrize(("trainer", "config"), [(single, SINGLE), (live, LIVE)], ids=["single", "live"])
def test_a_game_trainer_that_gets_a_signal_ends_with_the_same_bits(trainer, config, tmp_path):
    trainer.run(config, tmp_path / "undisturbed")
    with pytest.raises(KeyboardInterrupt):
        trainer.run(config, tmp_path / "run", tell=lambda _: send(signal.SIGINT))
    trainer.run(config, tmp_path / "run")
    assert_same(tmp_path / "undisturbed", tmp_path / "run")
    if trainer is live:
        assert_same_lake(tmp_path / "undisturbed", tmp_path / "run")


def test_a_mixture_finishes_and_saves_the_evaluation_in_which_a_signal_came(tmp_path, monkeypatch):
    pour, steps = mixture.pour, []

    def signalled(*args):
        steps.append(args[-1]["env_steps"])
        send(signal.SIGTERM)
        return pour(*args)

    monkeypatch.setattr(mixture, "pour", signalled)
    with terminate_as_interrupt(), pytest.raises(Terminated):
        mixture.run(MIXTURE, tmp_path / "run")
    assert steps == [512]  # the first of six evaluations, with its checkpoint
    assert (tmp_path / "run" / "checkpoints" / "00000001").exists()


def test_erl_finishes_and_saves_the_generation_in_which_a_signal_came(tmp_path):
    config = replace(TINY, generations=4, warn_free="0")
    erl.train(config, tmp_path / "undisturbed")
    generations = []

    def on_generation(metrics):
        generations.append(metrics["generation"])
        send(signal.SIGTERM)

    for _ in range(3):
        with terminate_as_interrupt(), pytest.raises(Terminated):
            erl.train(config, tmp_path / "run", resume=bool(generations), on_generation=on_generation)
    assert generations == [1, 2, 3]  # none was done twice
    erl.train(config, tmp_path / "run", resume=True)
    same = fingerprint
    assert same(tmp_path / "run") == same(tmp_path / "undisturbed")


def test_a_process_that_trains_on_the_host_ends_with_the_signal_s_exit_code(tmp_path):
    words = ["--suite", "gymnasium", "--game", "CartPole-v1", "--env-steps", "1000000000"]
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "lakepond",
            "train",
            "single",
            "--preset",
            "tiny",
            *words,
            "--out",
            tmp_path / "run",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        log = tmp_path / "run" / "metrics.jsonl"
        while process.poll() is None and not (log.exists() and log.stat().st_size):
            time.sleep(0.01)
        process.send_signal(signal.SIGHUP)
        _, printed = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 128 + signal.SIGHUP
    assert "stopping after this portion" in printed
    assert "stopped. Everything up to the last checkpoint is saved" in printed
