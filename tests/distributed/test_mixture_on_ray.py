"""`train mixture` on real Ray: killed agents and a killed driver end with the bits of one process."""

import subprocess
import sys
import time
from pathlib import Path

import worlds

from faults import training
from lakepond.cli import main


def words(folder: Path, *more: str) -> list[str]:
    return training.words("mixture", folder, *more, agents=2)


def test_a_killed_driver_and_a_killed_agent_end_as_one_process_does(cluster, tmp_path):
    run, one = tmp_path / "run", tmp_path / "one"
    command = [sys.executable, "-m", "lakepond", *words(run, "--ray", cluster.address)]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=training.environment()
    ) as driver:
        try:
            until = time.monotonic() + 240
            while not (run / "checkpoints" / "00000001" / "state.json").exists():
                assert driver.poll() is None, driver.stderr.read()[-3_000:]
                assert time.monotonic() < until
                time.sleep(0.02)
        finally:
            driver.kill()
    assert not (run / "checkpoints" / "00000006").exists()
    assert (run / "workers").exists()
    with worlds.killing_a_busy_worker():
        assert main(words(run, "--ray", cluster.address)) == 0
    assert main(words(one)) == 0
    assert training.differences(training.fingerprint(run), training.fingerprint(one)) == []
    assert not (run / "workers").exists()


def test_bad_input_is_one_sentence(tmp_path, capsys, monkeypatch):
    assert (
        main(words(tmp_path / "run", "--ray", "local", "--suite", "gymnasium", "--game", "CartPole-v1")) == 2
    )
    assert "games of the suite 'gymnasium' cannot be moved" in " ".join(capsys.readouterr().err.split())
    assert main(words(tmp_path / "run", "--ray", "127.0.0.1:1")) == 1
    assert "there is no Ray cluster at 127.0.0.1:1" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(words(tmp_path / "run", "--ray", "local")) == 1
    assert "Ray is not installed" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
