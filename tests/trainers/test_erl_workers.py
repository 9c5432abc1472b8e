"""What a Ray worker of `erl` does with its task, without Ray."""

from dataclasses import replace

import numpy as np
import pytest

import lakepond as lp
from lakepond.trainers import erl, erl_workers
from lakepond.trainers.erl_workers import AGENTS, ErlWorker
from lakepond.trainers.worker_chains import WorkerChain, WorkersLake


def test_an_agent_does_the_same_in_a_task_of_two_as_beside_all_others_and_the_market_is_stored_once(tmp_path):
    """With the networks and the instruments of the preset, and fewer days."""
    demo = erl.PRESETS["demo"]
    config = replace(demo, days=1_300, rules=replace(demo.rules, trading_days=10), min_free="1MB")
    prices = erl.read_prices(config)
    market = erl.market_of(config, *prices)
    agents = erl.first_generation(config, market.inputs).population
    chance = erl.Chance.of(config, market, 1)
    days, total = chance.explored_days[:2], config.sizes.total
    everything = erl.explore(config, market, agents, chance)
    rewards = np.asarray(erl.ErlInProcess(config, market).judge(agents, days))
    assert total > 2 * AGENTS
    assert np.any(rewards[:, 0] != rewards[:, 1])
    lake = WorkersLake(tmp_path, None)
    workers = [ErlWorker(config, prices, lake.place, f"worker-{number}") for number in range(2)]
    for number, first in enumerate(range(0, total, AGENTS)):
        worker, group = workers[number % 2], slice(first, first + AGENTS)
        stored = worker.explore(agents, 1, first, first + AGENTS)
        seen = erl_workers._explored(config, lake.steps(stored, exclude=erl.WINDOWS))
        for mine, of_all in zip(seen, everything, strict=True):
            assert mine.tobytes() == of_all[group].tobytes()
        assert (worker.judge(agents, days, first, first + AGENTS) == rewards[:, group]).all()
    assert len(list((tmp_path / "workers" / "sources").glob("*.source"))) == 1
    for worker in workers:
        worker.close()
    lake.close()


def test_steps_that_another_run_left_in_a_bucket_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    url = f"file://{tmp_path}/bucket/workers"
    other, mine = (lp.Spec(obs=lp.Field((size,), "float32")) for size in (2, 3))
    with lp.Replay.open(tmp_path / "other", other, 10, cloud=url) as replay:
        replay.commit({})
        assert replay.push(wait=True).done
    left = f"{url} is left over from another run .*obs is float32.3., not float32.2.; delete {url}, or"
    with pytest.raises(lp.SpecError, match=left):
        WorkerChain(url, "worker-0", mine, 10, "1MB")
    assert not list((tmp_path / "tmp").iterdir())
