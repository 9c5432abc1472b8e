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


def test_a_killed_driver_and_a_killed_agent_end_as_one_process_does(connected, tmp_path):
    run, one = tmp_path / "run", tmp_path / "one"
    command = [sys.executable, "-m", "lakepond", *words(run, "--ray", connected.address)]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=training.environment()
    ) as driver:
        try:
            until = time.monotonic() + 240
            while not (run / "checkpoints" / "00000001" / "state.json").exists():
                assert driver.poll() is None, driver.stderr.read()[-3_000:]
                assert time.monotonic() < until
                time.sleep(0.02)
            workers = [each for each in connected.workers() if "_Worker" in each.name()]
            loaded = [each.path for worker in workers for each in worker.memory_maps()]
            assert any("/jaxlib/" in path for path in loaded)
            assert not any(
                "/pandas/" in path for path in loaded
            )  # of the pictures of gymnax: seconds to import
        finally:
            driver.kill()
    assert not (run / "checkpoints" / "00000006").exists()
    assert (run / "workers").exists()
    with worlds.killing_a_busy_worker(connected):
        assert main(words(run, "--ray", connected.address)) == 0
    assert main(words(one)) == 0
    assert training.differences(training.fingerprint(run), training.fingerprint(one)) == []
    assert not (run / "workers").exists()
