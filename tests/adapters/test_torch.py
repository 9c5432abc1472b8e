"""Batches as tensors: correct values, at most one copy, and a tensor in use is never overwritten."""

import copy
import ctypes
import pickle
import threading

import numpy as np
import pytest
import torch

import lakepond as lp
from lakepond.adapters.torch import MOST_SPARE, TorchSampler, to_torch

SPEC = lp.Spec(
    obs={"frames": lp.Field((4, 8, 8), "uint8"), "speed": lp.Field((3,), "float32")},
    action=lp.Field((2,), "float32"),
    extras={"log_prob": lp.Field((), "float32")},
)


def replay_of(steps: int, **options) -> lp.Replay:
    replay = lp.Replay(SPEC, 500, seed=3, **options)
    for t in range(steps):
        record(replay, t)
    return replay


def record(replay: lp.Replay, t: int) -> None:
    frames = np.stack([np.full((8, 8), max(0, t + k) % 251, np.uint8) for k in range(5)])
    replay.record(
        obs={"frames": frames[:4], "speed": np.full(3, t, np.float32)},
        action=np.array([t, -t], np.float32),
        reward=float(t),
        next_obs={"frames": frames[1:], "speed": np.full(3, t + 1, np.float32)},
        terminated=t % 50 == 49,
        truncated=False,
        log_prob=-0.5,
    )


def check(batch: lp.Batch) -> None:
    """Every field belongs to the step that the batch names."""
    ids = batch.step_id.cpu().numpy()
    obs = {key: value.cpu().numpy() for key, value in batch.obs.items()}
    np.testing.assert_array_equal(obs["speed"], np.repeat(ids[:, None], 3, axis=1))
    np.testing.assert_array_equal(obs["frames"][:, 0, 0, 0], ids % 251)
    np.testing.assert_array_equal(batch.next_obs["frames"].cpu().numpy()[:, 3, 0, 0], (ids + 4) % 251)
    np.testing.assert_array_equal(batch.action.cpu().numpy()[:, 1], -ids)
    np.testing.assert_array_equal(batch.extras["log_prob"].cpu().numpy(), np.float32(-0.5))


def test_tensors_are_those_of_sample():
    batch = TorchSampler(replay_of(300), 32, rng=np.random.default_rng(7)).sample()
    same = replay_of(300).sample(32, rng=np.random.default_rng(7))
    check(batch)
    for name in ("action", "reward", "terminated", "truncated", "discount", "weight", "step_id", "stream"):
        array = getattr(same, name)
        tensor = getattr(batch, name)
        assert tensor.dtype == torch.from_numpy(array).dtype
        np.testing.assert_array_equal(tensor.numpy(), array)


def test_to_torch_shares_memory_on_the_cpu():
    batch = replay_of(20).sample(4, exclude=["next_obs['frames']"])
    tensors = to_torch(batch)
    assert tensors.obs["frames"].data_ptr() == batch.obs["frames"].ctypes.data
    assert tensors.next_obs["frames"] is None


@pytest.mark.parametrize("prefetch", [False, True])
@pytest.mark.parametrize("keep", ["batch", "tensor", "view", "numpy view"])
def test_what_is_held_never_changes(keep, prefetch):
    holders = {
        "batch": lambda b: [b.obs["frames"], b.obs["speed"], b.action, b.step_id],
        "tensor": lambda b: [b.obs["speed"]],
        "view": lambda b: [b.obs["speed"][3:5, 1]],
        "numpy view": lambda b: [b.obs["speed"].numpy()[::2][1:]],
    }
    with TorchSampler(replay_of(300), 16, prefetch=prefetch, rng=np.random.default_rng(0)) as sampler:
        held = [holders[keep](sampler.sample()) for _ in range(3 * MOST_SPARE)]
        before = [[torch.as_tensor(value).clone() for value in each] for each in held]
        for _ in range(3 * MOST_SPARE):
            check(sampler.sample())
    for one, copies in zip(held, before, strict=True):
        for value, saved in zip(one, copies, strict=True):
            assert torch.equal(torch.as_tensor(value), saved)


def test_what_a_graph_holds_never_changes():
    """Autograd keeps tensors of a batch alive that the caller has dropped."""
    weight = torch.ones(1, requires_grad=True)
    sampler = TorchSampler(replay_of(300), 16, rng=np.random.default_rng(0))
    expected, total = 0.0, torch.zeros(())
    for _ in range(3 * MOST_SPARE):
        speed = sampler.sample().obs["speed"]
        expected += float(speed.sum())
        total = total + (speed * weight).sum()
        del speed
    total.backward()
    assert weight.grad.item() == pytest.approx(expected)


def test_memory_is_used_again_once_nothing_refers_to_it():
    sampler = TorchSampler(replay_of(300), 16)
    places = set()
    for _ in range(20):
        batch = sampler.sample()
        places.add(batch.obs["frames"].data_ptr())
        del batch  # no cycle refers to it
    assert len(places) <= 2


@pytest.mark.parametrize("prefetch", [False, True])
def test_the_path_of_other_devices(prefetch):
    """Staged: device tensors are copies, whose host memory is used again at once. Forced on the CPU."""
    sampler = TorchSampler(replay_of(300), 16, prefetch=prefetch, rng=np.random.default_rng(0))
    sampler._spare._staged = True
    batches = [sampler.sample() for _ in range(10)]
    for batch in batches:
        check(batch)
    assert len(sampler._spare._batches) <= 2
    sampler.close()


class Cuda:
    """Stands for a CUDA device on a machine without one: copies from pinned memory happen later, in order."""

    def __init__(self, monkeypatch):
        self.pinned: dict[int, torch.Tensor] = {}
        """pinned memory by address; kept, as PyTorch's allocator keeps it while a copy reads it"""
        self.queue: list[tuple[torch.Tensor, int]] = []
        self.done = 0
        cuda, empty, to = self, torch.empty, torch.Tensor.to

        def pin(tensor):
            pinned = tensor.clone()
            self.pinned[pinned.data_ptr()] = pinned
            return pinned

        def send(tensor, device, *, non_blocking=False, copy=False):
            if device.type != "cuda":
                return to(tensor, device, non_blocking=non_blocking, copy=copy)
            assert non_blocking
            assert copy
            assert tensor.is_pinned()
            sent = empty(tensor.shape, dtype=tensor.dtype).zero_()
            self.queue.append((sent, tensor.data_ptr()))  # an address: the device refers to no Python object
            return sent

        class Event:
            def record(self, stream):
                assert stream is cuda
                self.after = len(cuda.queue)

            def query(self):
                return cuda.done >= self.after

        monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
        monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: tensor.data_ptr() in self.pinned)
        monkeypatch.setattr(torch.Tensor, "to", send)
        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: self)

    def run(self, copies: int) -> None:
        """Carry out the next copies."""
        for sent, address in self.queue[self.done : self.done + copies]:
            data = ctypes.string_at(address, sent.nbytes)
            sent.copy_(torch.frombuffer(bytearray(data), dtype=sent.dtype).reshape(sent.shape))
        self.done = min(self.done + copies, len(self.queue))


@pytest.mark.parametrize("prefetch", [False, True])
def test_pinned_memory_is_used_again_only_after_its_copies_have_completed(monkeypatch, prefetch):
    """The code for CUDA, forced on the CPU: pinned memory, asynchronous copies that are late by a while."""
    cuda, rng = Cuda(monkeypatch), np.random.default_rng(5)
    sampler = TorchSampler(replay_of(300), 16, device="cuda", prefetch=prefetch, rng=np.random.default_rng(0))
    batches = []
    for _ in range(60):
        batches.append(sampler.sample())
        fields = len(cuda.queue) // len(batches)
        cuda.run(int(rng.integers(0, 3 * fields)))  # often less than was sent
    late = len(cuda.queue) - cuda.done
    cuda.run(late)
    assert late > 0
    for batch in batches:
        check(batch)
    assert fields <= len(cuda.pinned) < 30 * fields, "memory was used again"
    held = len(cuda.pinned)
    for _ in range(10):  # a device that keeps up needs no more memory
        batch = sampler.sample()
        cuda.run(len(cuda.queue))
        check(batch)
    assert len(cuda.pinned) == held
    sampler.close()


def test_prefetch_while_another_thread_records():
    replay = replay_of(100)
    stop = threading.Event()

    def recorder():
        t = 100
        while not stop.is_set():
            record(replay, t)
            t += 1

    thread = threading.Thread(target=recorder)
    thread.start()
    try:
        with TorchSampler(replay, 16, prefetch=True) as sampler:
            for _ in range(200):
                check(sampler.sample())
    finally:
        stop.set()
        thread.join()


def test_an_error_on_the_thread_is_raised_and_the_next_call_works():
    replay = lp.Replay(SPEC, 100)
    with TorchSampler(replay, 4, prefetch=True) as sampler:
        with pytest.raises(lp.TooFewSteps, match="has no steps"):
            sampler.sample()
        record(replay, 0)
        assert sampler.sample().step_id.tolist() == [0] * 4


def test_options_may_change():
    sampler = TorchSampler(replay_of(300, alpha=0.6), 8, beta=0.4)
    sampler.sample()
    assert sampler.sample(beta=1.0).obs["speed"].shape == (8, 3)
    assert sampler.sample(sequence_length=5).obs["speed"].shape == (8, 5, 3)


@pytest.mark.parametrize("prefetch", [False, True])
def test_a_copy_samples_a_copy(prefetch):
    sampler = TorchSampler(replay_of(300), 16, prefetch=prefetch, rng=np.random.default_rng(0))
    for way in (copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))):
        other = way(sampler)
        record(other.source, 300)
        check(other.sample())
        assert len(sampler.source) == 300
        with way(sampler) as one, way(sampler) as two:
            assert torch.equal(one.sample().step_id, two.sample().step_id)
        other.close()
    sampler.close()


def test_out_is_refused():
    with pytest.raises(lp.SampleError, match="leave out= away"):
        TorchSampler(replay_of(5), 4, out=None)


def test_a_lake_is_sampled_too(tmp_path):
    with lp.Replay.open(tmp_path / "lake", SPEC, 100) as replay:
        for t in range(60):
            record(replay, t)
    with lp.Lake.open(tmp_path / "lake") as lake:
        sampler = TorchSampler(lake, 16, rng=np.random.default_rng(0))
        for _ in range(5):
            check(sampler.sample())


def test_a_dtype_that_torch_does_not_have():
    replay = lp.Replay(lp.Spec(obs=lp.Field((), "float32"), extras={"name": lp.Field((), "S4")}), 10)
    replay.record(
        obs=np.float32(0),
        action=0,
        reward=0.0,
        next_obs=np.float32(1),
        terminated=False,
        truncated=False,
        name=np.array(b"abc", "S4"),
    )
    with pytest.raises(lp.SampleError, match=r"extras\['name'\] is \|S4, which PyTorch has no tensors for"):
        TorchSampler(replay, 1).sample()


# --- tensors that are recorded ---------------------------------------------------------------------


@pytest.mark.parametrize("batched", [False, True])
def test_record_takes_tensors(batched):
    spec = lp.Spec(obs=lp.Field((3,), "float32"), action=lp.Field((2,), "float32"))
    replay = lp.Replay(spec, 10, alpha=0.5)
    lead = (2,) if batched else ()
    action = torch.full((*lead, 2), 0.5, requires_grad=True) * 2  # not a leaf, with gradients
    replay.record(
        obs=torch.arange(3.0).expand(*lead, 3),
        action=action,
        reward=torch.full(lead, 1.5, dtype=torch.float64),
        next_obs=torch.ones(*lead, 3),
        terminated=torch.zeros(lead, dtype=torch.bool),
        truncated=torch.ones(lead, dtype=torch.bool),
    )
    batch = replay.recent(len(replay))
    np.testing.assert_array_equal(batch.obs[0], [0, 1, 2])
    np.testing.assert_array_equal(batch.action[-1], [1, 1])
    assert batch.reward.tolist() == [1.5] * len(replay)
    assert batch.truncated.all()
    ids = torch.from_numpy(batch.step_id)
    replay.update_priorities(ids, action.sum() * torch.ones(len(replay)))
    np.testing.assert_array_equal(replay.steps(ids).step_id, batch.step_id)


def test_record_refuses_a_tensor_without_a_numpy_dtype():
    replay = lp.Replay(lp.Spec(obs=lp.Field((3,), "float32")), 10)
    with pytest.raises(lp.RecordError, match="obs is a tensor without a NumPy dtype"):
        replay.record(
            obs=torch.ones(3, dtype=torch.bfloat16),
            action=0,
            reward=0.0,
            next_obs=torch.ones(3),
            terminated=False,
            truncated=False,
        )
    assert len(replay) == 0
