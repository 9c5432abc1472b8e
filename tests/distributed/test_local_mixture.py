"""`train mixture` with the emulators of a machine, on a Ray that this process has started."""

import worlds
from faults import training
from lakepond.cli import main
from lakepond.lake.read.lake import Lake


def test_environments_of_the_host_stay_in_their_worker_and_start_again_elsewhere(local, tmp_path):
    run = tmp_path / "run"
    game = ["--suite", "gymnasium", "--game", "worlds:Hosted-v0", "--gpus-per-agent", "0.5"]
    with worlds.killing_a_busy_worker(once=(run / "checkpoints" / "00000001" / "state.json").exists):
        assert main(training.words("mixture", run, "--ray", local, *game, agents=2)) == 0
    with Lake.open(run / "lake") as lake:
        everything = lake.steps(0, lake.commit.recorded)
        steps = worlds.each_once(everything.obs)  # of each environment all steps that arrived, in order
        assert sum(steps.values()) == training.SETTINGS["mixture"]["env-steps"]
        assert len(steps) == 3  # two workers, one of which was started again
        assert (everything.reward == 1).all()  # each has its share of one GPU
        batch = lake.sample(2_000, n_step=4, gamma=1.0)
    assert (batch.next_obs[:, :2] == batch.obs[:, :2]).all()  # no return runs from one process to another
    assert set((batch.next_obs[:, 2] - batch.obs[:, 2]).tolist()) == {1, 2, 3, 4}
