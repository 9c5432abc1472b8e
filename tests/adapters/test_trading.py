"""The drop-in for the trading code's own replay buffers."""

import copy
import gzip
import pickle
import subprocess
import sys
from collections import deque

import numpy as np
import pytest

import lakepond as lp
from lakepond.adapters import trading

DAYS = np.random.default_rng(0).random((80, 6, 3), np.float32)


def fill(buffer: trading.ReplayBuffer, steps: int = 50) -> None:
    for t in range(steps):
        action = np.full((6, 2), t, np.float32)
        buffer.add(DAYS[t : t + 20], action, float(t), DAYS[t + 1 : t + 21], t % 10 == 9)


def test_it_is_the_buffer_the_trading_code_knows():
    assert (trading.ReplayBuffer().capacity, trading.ReplayBuffer().min_size) == (50_000, 10_000)
    buffer = trading.ReplayBuffer(capacity=40, min_size=30, seed=1)
    assert len(buffer) == 0
    assert not buffer.is_ready()
    assert buffer.get_stats() == {"size": 0, "capacity": 40, "utilization": 0.0, "total_added": 0}
    fill(buffer)
    assert buffer.is_ready()
    batch = buffer.sample(16)
    shapes = {name: values.shape for name, values in batch.items()}
    assert shapes == {
        "states": (16, 20, 6, 3),
        "actions": (16, 6, 2),
        "rewards": (16, 1),
        "next_states": (16, 20, 6, 3),
        "dones": (16, 1),
    }
    assert all(values.dtype == np.float32 for values in batch.values())
    for i, t in enumerate(batch["rewards"][:, 0].astype(int)):
        assert batch["states"][i].tobytes() == DAYS[t : t + 20].tobytes()
        assert batch["next_states"][i].tobytes() == DAYS[t + 1 : t + 21].tobytes()
        assert batch["dones"][i, 0] == (t % 10 == 9)
    assert len(set(batch["rewards"][:, 0])) == 16  # without replacement, as it was
    stats = buffer.get_stats()
    assert (stats["size"], stats["total_added"], stats["utilization"]) == (40, 50, 1.0)
    assert stats["ratio"] > 5
    buffer.clear()
    assert len(buffer) == 0
    assert buffer.total_added == 50


def test_too_few():
    buffer = trading.ReplayBuffer(10)
    with pytest.raises(ValueError, match="holds 0"):
        buffer.sample(4)
    fill(buffer, 3)
    with pytest.raises(ValueError, match="holds 3"):
        buffer.sample(4)
    with pytest.raises(lp.RecordError, match="alike"):
        buffer.add(DAYS[:20], np.zeros((6, 2)), 0.0, DAYS[:19], False)
    with pytest.raises(lp.SpecError):
        trading.ReplayBuffer(0)


def test_tensors_may_require_grad():
    torch = pytest.importorskip("torch")
    buffer = trading.PrioritizedReplayBuffer(capacity=10, alpha=1.0, seed=2)
    for t in range(10):
        state, following, action = (
            torch.full((3,), n, dtype=torch.float32, requires_grad=True) for n in (t, t + 1, 10 * t)
        )
        buffer.add(state, action, state.sum(), following, 0)
    batch, indices, _ = buffer.sample(10)
    assert (batch["rewards"][:, 0] == 3 * indices).all()
    assert (batch["actions"][:, 0] == 10 * indices).all()
    errors = torch.zeros(10, requires_grad=True) + torch.eye(10)[7] * 100
    buffer.update_priorities(torch.arange(10), errors)
    assert buffer.sample(1)[1].tolist() == [7]


@pytest.mark.parametrize("device", [None, "cpu"])
def test_prioritised(device):
    like = np.asarray if device is None else pytest.importorskip("torch").as_tensor
    buffer = trading.PrioritizedReplayBuffer(capacity=40, alpha=1.0, beta=0.5, device=device, seed=2)
    with pytest.raises(lp.TooFewSteps):
        buffer.update_priorities([0], [1.0])
    fill(buffer, 40)
    batch, indices, weights = buffer.sample(20)
    assert batch["states"].shape == (20, 20, 6, 3)
    assert (np.asarray(batch["rewards"])[:, 0] == indices).all()
    assert (weights == 1).all()
    buffer.update_priorities(np.arange(40), like(np.full((40, 1), -1e-3)))
    buffer.update_priorities([7, 11], like([100.0, -100.0]))
    drawn = [set(buffer.sample(2)[1].tolist()) for _ in range(20)]
    assert all(ids == {7, 11} for ids in drawn)
    _, indices, weights = buffer.sample(40)
    assert weights[np.isin(indices, [7, 11])].max() < 0.01
    assert weights.max() == 1
    buffer.beta = 0.0
    assert (buffer.sample(40)[2] == 1).all()


def test_save_and_load(tmp_path):
    path = tmp_path / "replay_buffer"
    buffer = trading.ReplayBuffer(capacity=40, seed=1)
    with pytest.raises(lp.TooFewSteps):
        buffer.save(path)
    fill(buffer, 30)
    first = buffer.save(path)
    assert first.transitions == 30
    assert first.bytes_on_disk < 0.3 * first.bytes_plain
    fill(buffer, 25)  # the ring has wrapped
    second = buffer.save(path)
    assert second.transitions == 40
    assert "x smaller" in str(second)
    expected = buffer.replay.recent(40)
    buffer.close()
    again = trading.ReplayBuffer.load(path)
    assert (len(again), again.capacity, again.total_added) == (40, 40, 55)
    found = again.replay.recent(40)
    assert found.obs.tobytes() == expected.obs.tobytes()
    assert found.next_obs.tobytes() == expected.next_obs.tobytes()
    fill(again, 55)  # more than it holds, between two saves: what has left is not kept
    assert again.save(path).transitions == 40
    again.close()
    assert len(lp.Lake.open(path)) == 40
    other = trading.ReplayBuffer(capacity=40)
    fill(other, 3)
    with pytest.raises(lp.SpecError, match="already exists"):
        other.save(path)


def test_uncompressed_is_plain(tmp_path):
    buffer = trading.ReplayBuffer(capacity=40)
    fill(buffer, 30)
    buffer.save(tmp_path / "plain", compress=False)
    buffer.close()
    with lp.Lake.open(tmp_path / "plain") as lake:
        assert {file.shard.codec for _, file in lake.reader.row_files(0)} == {"none"}
    again = trading.ReplayBuffer.load(tmp_path / "plain")
    assert again.replay.recent(1).obs[0].tobytes() == DAYS[29:49].tobytes()
    again.close()


def test_prioritised_buffers_come_back_with_their_priorities(tmp_path):
    buffer = trading.PrioritizedReplayBuffer(capacity=40, alpha=1.0, seed=3)
    fill(buffer, 40)
    buffer.update_priorities(np.arange(40), np.full(40, 1e-3))
    buffer.update_priorities([7, 11], [100.0, 100.0])
    buffer.save(tmp_path / "buffer")
    buffer.close()
    drawn = []
    for _ in range(2):
        again = trading.PrioritizedReplayBuffer.load(tmp_path / "buffer", seed=3)
        assert again.alpha == 1.0
        drawn.append([again.sample(2)[1].tolist() for _ in range(20)])
        again.close()
    assert all(set(ids) == {7, 11} for ids in drawn[0])
    assert drawn[0] == drawn[1]  # the seed decides


@pytest.mark.parametrize("compress", [True, False])
def test_an_old_pickle_is_read(tmp_path, compress):
    old = deque(maxlen=100)
    for t in range(25):
        old.append(
            {
                "state": DAYS[t : t + 20].copy(),
                "action": np.full((6, 2), t, np.float32),
                "reward": float(t),
                "next_state": DAYS[t + 1 : t + 21].copy(),
                "done": t == 24,
            }
        )
    data = pickle.dumps({"capacity": 100, "buffer": old}, protocol=pickle.HIGHEST_PROTOCOL)
    path = tmp_path / "replay_buffer.pkl"
    path.write_bytes(path_bytes(compress, data))
    buffer = trading.ReplayBuffer.load(path)
    assert (len(buffer), buffer.capacity) == (25, 100)
    batch = buffer.replay.recent(25)
    assert batch.obs.tobytes() == np.stack([DAYS[t : t + 20] for t in range(25)]).tobytes()
    assert batch.terminated.tolist() == [False] * 24 + [True]
    assert buffer.get_stats()["ratio"] > 4
    buffer.save(path)  # where the pickle is, as the project does after it resumed
    buffer.close()
    assert (tmp_path / "replay_buffer.pkl.old").read_bytes() == path_bytes(compress, data)
    again = trading.ReplayBuffer.load(path)
    assert again.replay.recent(25).obs.tobytes() == batch.obs.tobytes()
    again.close()
    path.rename(tmp_path / "elsewhere")
    path.write_bytes(data)
    with pytest.raises(lp.SpecError, match="move one of them away"):
        buffer.save(path)


def path_bytes(compress: bool, data: bytes) -> bytes:
    return gzip.compress(data, mtime=0) if compress else data


class TestWithADevice:
    def test_batches_are_float32_tensors_on_it(self):
        torch = pytest.importorskip("torch")
        buffer = trading.ReplayBuffer(40, device=torch.device("cpu"), min_size=30, seed=1)
        for t in range(50):
            buffer.add(
                state=DAYS[t : t + 20].astype(np.float64),
                action=np.full(2, t),
                reward=float(t),
                next_state=DAYS[t + 1 : t + 21].astype(np.float64),
                done=float(t % 10 == 9),
            )
        for _ in range(3):
            batch = buffer.sample(16)
            assert {(b.dtype, b.device.type) for b in batch.values()} == {(torch.float32, "cpu")}
            ids = batch["rewards"][:, 0].numpy().astype(int)
            assert len(set(ids)) == 16
            assert batch["states"].shape == (16, 20, 6, 3)
            assert batch["rewards"].shape == batch["dones"].shape == (16, 1)
            for i, t in enumerate(ids):
                assert batch["states"][i].numpy().tobytes() == DAYS[t : t + 20].tobytes()
                assert batch["next_states"][i].numpy().tobytes() == DAYS[t + 1 : t + 21].tobytes()
                assert batch["actions"][i].tolist() == [t, t]
                assert batch["dones"][i, 0] == (t % 10 == 9)
        with pytest.raises(ValueError, match="holds 40"):
            buffer.sample(41)

    def test_it_draws_what_arrays_draw_and_learns(self, tmp_path):
        torch = pytest.importorskip("torch")
        arrays, tensors = (trading.ReplayBuffer(60, device=device, seed=3) for device in (None, "cpu"))
        fill(arrays)
        fill(tensors)
        critic = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(20 * 6 * 3, 1))
        optimizer = torch.optim.SGD(critic.parameters(), 1e-4)
        losses = []
        for _ in range(60):
            batch = tensors.sample(32)
            assert batch["states"].numpy().tobytes() == arrays.sample(32)["states"].tobytes()
            loss = (critic(batch["states"].to("cpu")) - batch["rewards"]).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < 0.7 * losses[0]
        tensors.save(tmp_path / "b")
        tensors.close()
        again = trading.ReplayBuffer.load(str(tmp_path / "b"), device="cpu", min_size=50)
        assert again.is_ready()
        assert again.sample(4)["states"].dtype == torch.float32
        again.close()


def test_torch_is_imported_only_for_a_device():
    code = (
        "import sys, numpy as np\n"
        "from lakepond.adapters.trading import ReplayBuffer\n"
        "b = ReplayBuffer(5)\n"
        "b.add(np.zeros(3), np.zeros(1), 0.0, np.zeros(3), done=1.0)\n"
        "b.sample(1)\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_draws_follow_the_global_seed_as_in_the_project():
    drawn = []
    for seed in (5, 5, 6):
        buffer = trading.ReplayBuffer(40)
        fill(buffer, 40)
        np.random.seed(seed)
        drawn.append(buffer.sample(8)["rewards"].tolist())
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize("kind", [trading.ReplayBuffer, trading.PrioritizedReplayBuffer])
def test_a_buffer_with_a_device_can_be_copied_after_it_was_sampled(kind):
    buffer = kind(50, device="cpu", seed=0)
    for t in range(20):
        state = np.full((5, 2), t, np.float32)
        buffer.add(state, np.zeros(2, np.float32), float(t), state + 1, done=0.0)
    buffer.sample(4)
    for other in (copy.deepcopy(buffer), pickle.loads(pickle.dumps(buffer))):
        other.add(state, np.zeros(2, np.float32), 20.0, state + 1, done=1.0)
        assert (len(buffer), len(other)) == (20, 21)
        other.sample(4)


def test_done_is_0_or_1():
    buffer = trading.ReplayBuffer(4)
    for done in (0.5, float("nan"), 2):
        with pytest.raises(lp.RecordError, match="done is"):
            buffer.add(DAYS[0], DAYS[0], 0.0, DAYS[0], done)
    buffer.add(DAYS[0], DAYS[0], 0.0, DAYS[0], np.float32(1))
    assert buffer.sample(1)["dones"][0, 0] == 1


@pytest.mark.parametrize("name", ["ReplayBuffer", "PrioritizedReplayBuffer", "CloudSync"])
def test_the_old_names_work_and_warn(name):
    with pytest.warns(DeprecationWarning, match=rf"moved to lakepond\.adapters\.trading\.{name}"):
        assert getattr(lp, name) is getattr(trading, name)
    assert name not in dir(lp)
