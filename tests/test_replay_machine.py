"""A random walk: record, cut, end, fill, sample, evict, clear, copy, reopen; the replay always equals a list.

In memory or with a lake on disk. Steps are also recorded with an interrupt at a random line, and a forked
child must have the same content.
"""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import shutil
import sys
import tempfile
import traceback
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import lakepond as lp
from lakepond.pond.observations import RECHECKS
from lakepond.sampling.priorities import EPSILON
from lakepond.types import Tree, leaves, rebuild
from reference import WORLDS, PlainReplay, same_bytes

STREAMS = 3
WALKS = settings().max_examples if os.environ.get("LAKEPOND_HYPOTHESIS") == "soak" else 25
"""of each kind of observation"""


def stack(trees: list[Tree]) -> Tree:
    columns = iter(zip(*[[leaf for _, leaf in leaves(tree)] for tree in trees], strict=True))
    return rebuild(trees[0], lambda: np.stack(next(columns)))


def item(tree: Tree, i: int) -> Tree:
    values = iter([leaf for _, leaf in leaves(tree)])
    return rebuild(tree, lambda: next(values)[i])


class ReplayMachine(RuleBasedStateMachine):
    world_name = "frames first"
    forks = on_disk = False

    @initialize(
        capacity=st.sampled_from([1, 2, 5, 17, 60]),
        alpha=st.sampled_from([None, 0.7]),
        rechecks=st.sampled_from([RECHECKS, (3, 10, 10, 10)]),
    )
    def start(self, capacity: int, alpha: float | None, rechecks: tuple[int, ...]) -> None:
        self.world = WORLDS[self.world_name]
        self.folder = Path(tempfile.mkdtemp(prefix="lakepond-machine-"))
        self.alpha, self.snapshots = alpha, 0
        capacity = max(capacity, 17) if self.on_disk else capacity  # a lake takes no batch above the capacity
        spec = lp.Spec(
            obs=self.world.fields,
            action=lp.Field((2,), "float32"),
            extras={"log_prob": lp.Field((), "float64")},
        )
        if self.on_disk:
            self.replay = lp.Replay.open(self.folder / "lake", spec, capacity, alpha=alpha)
        else:
            self.replay = lp.Replay(spec, capacity, alpha=alpha)
        for leaf in self.replay._pond.leaves:
            leaf._rechecks = list(rechecks)  # steps after which the layout is checked, and changed if need be
        self.model = PlainReplay(capacity)
        self.at = {stream: (stream, 0) for stream in range(STREAMS)}
        self.episodes = STREAMS
        self.priority: dict[int, float] = {}
        self.largest = 1.0

    # --- recording ---

    def step_of(self, stream: int, terminated: bool, truncated: bool, follows: bool | None = None) -> dict:
        """The next step of a stream; its reward is its own id."""
        episode, t = self.at[stream]
        step_id = self.model.recorded
        step = {
            "obs": self.world.observe(episode, t),
            "next_obs": self.world.observe(episode, t + 1),
            "action": np.array([step_id, stream], np.float32),
            "reward": np.float32(step_id),
            "terminated": terminated,
            "truncated": truncated,
            "log_prob": -float(step_id),
            "stream": stream,
        }
        self.at[stream] = (episode, t + 1)
        if terminated or truncated:
            self.new_episode(stream)
        self.model.record(step, follows=follows)
        return step

    def new_episode(self, stream: int) -> None:
        self.at[stream] = (self.episodes, 0)
        self.episodes += 1

    def hand_over(self, steps: list[dict], stream: object) -> None:
        """Record a batch, and overwrite the arrays afterwards: nothing may be kept by view."""
        fields = {
            name: stack([step[name] for step in steps])
            for name in ("obs", "next_obs", "action", "reward", "terminated", "truncated", "log_prob")
        }
        ids = self.replay.record(**fields, stream=stream)
        assert list(ids) == list(range(self.model.recorded - len(steps), self.model.recorded))
        for _, leaf in [*leaves(fields["obs"]), *leaves(fields["next_obs"])]:
            leaf[...] = 77

    @rule(stream=st.integers(0, STREAMS - 1), terminated=st.booleans(), truncated=st.booleans())
    def record_one(self, stream: int, terminated: bool, truncated: bool) -> None:
        step = dict(self.step_of(stream, terminated, truncated))
        assert self.replay.record(**step) == self.model.recorded - 1

    @rule(count=st.integers(1, 9), stream=st.integers(0, STREAMS - 1))
    def record_run_of_one_stream(self, count: int, stream: int) -> None:
        self.hand_over([self.step_of(stream, False, False) for _ in range(count)], stream)

    @rule(rounds=st.integers(1, 12), ends=st.lists(st.integers(0, 11), max_size=2))
    def record_vector_environment(self, rounds: int, ends: list[int]) -> None:
        for t in range(rounds):
            self.hand_over([self.step_of(s, False, t in ends) for s in range(STREAMS)], None)

    @rule(order=st.permutations(range(STREAMS)))
    def record_out_of_order(self, order: list[int]) -> None:
        self.hand_over([self.step_of(s, False, False) for s in order], np.array(order))

    @rule(stream=st.integers(0, STREAMS - 1), episode=st.integers(0, 3), t=st.integers(0, 3))
    def replay_an_old_episode(self, stream: int, episode: int, t: int) -> None:
        self.at[stream] = (episode, t)

    @rule(stream=st.integers(0, STREAMS - 1))
    def stand_still(self, stream: int) -> None:
        """An observation that repeats itself."""
        episode, t = self.at[stream]
        step = dict(self.step_of(stream, False, False))
        self.at[stream] = (episode, t)
        self.model.all[-1]["next_obs"] = step["next_obs"] = self.world.observe(episode, t)
        self.replay.record(**step)

    @rule(stream=st.integers(0, STREAMS - 1), follows=st.booleans())
    def record_with_an_explicit_link(self, stream: int, follows: bool) -> None:
        step = dict(self.step_of(stream, False, False, follows))
        self.replay.record(**step, follows_previous=follows)

    @rule(streams=st.sets(st.integers(0, STREAMS - 1), min_size=1))
    def cut(self, streams: set[int]) -> None:
        """The environments continue, but the next step counts as the start of an episode."""
        self.replay.cut(sorted(streams))
        self.model.cuts |= streams

    @rule(stream=st.integers(0, STREAMS - 1), terminated=st.booleans())
    def end(self, stream: int, terminated: bool) -> None:
        own = [i for i in self.model.live() if self.model.all[i]["stream"] == stream]
        if not own or self.model.all[own[-1]]["alone"]:  # one that was filled in ends no episode here
            with pytest.raises(lp.UnknownStream):
                self.replay.end(stream)
            return
        assert self.replay.end(stream, terminated=terminated, truncated=not terminated) == own[-1]
        step = self.model.all[own[-1]]
        if not (step["terminated"] or step["truncated"]):
            step["terminated"], step["truncated"] = terminated, not terminated

    @rule(
        field=st.sampled_from(["obs", "action", "reward", "stream", "log_prob", "masked", "follows_previous"])
    )
    def refuse_bad_input(self, field: str) -> None:
        """Nothing changes: the invariants look at every step."""
        step = {**self.first_step(), "stream": 0}
        if field == "masked":
            step["action"] = np.ma.masked_array(step["action"], [True, False])
        else:
            step[field] = "none of it"
        with pytest.raises(lp.RecordError):
            self.replay.record(**step)

    @precondition(lambda self: not self.on_disk and self.model.live())
    @rule(share=st.floats(0, 1), seed=st.integers(0, 9))
    def fill(self, share: float, seed: int) -> None:
        """Append some of its own steps at random, through a lake; they belong to no sequence."""
        count = max(1, int(share * len(self.replay)))
        with lp.Lake.open(self.snapshot_path(self.replay)) as lake:
            self.replay.fill_from(lake, count, rng=np.random.default_rng(seed))
        new, marks = self.replay.recent(count), ("reward", "terminated", "truncated")
        before = [self.model.all[step_id] for step_id in self.model.live()]
        for mark in zip(*(getattr(new, name).tolist() for name in marks), strict=True):
            original = next(step for step in before if tuple(step[name] for name in marks) == mark)
            before = [step for step in before if step is not original]  # each at most once
            self.model.record(original, alone=True)
        self.snapshot("replay")

    def snapshot_path(self, replay: lp.Replay) -> Path:
        self.snapshots += 1
        path = self.folder / f"snapshot-{self.snapshots}"
        replay.snapshot(path)
        return path

    @rule()
    def clear(self) -> None:
        self.replay.clear()
        self.model.clear()

    @rule(stream=st.integers(0, STREAMS - 1), line=st.integers(0, 450))
    def record_with_an_interrupt(self, stream: int, line: int) -> None:
        """Before the n-th line that is run, as a signal would: the step is there, or it is not."""
        step = dict(self.step_of(stream, False, False))
        left = line

        def trace(frame, event, _):
            nonlocal left
            file = frame.f_code.co_filename
            if not any(f"/lakepond/{part}/" in file for part in ("pond", "rows", "sampling")):
                return None
            left -= event == "line"
            if left == -1 and event == "line":
                raise KeyboardInterrupt
            return trace

        sys.settrace(trace)
        try:
            self.replay.record(**step)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        assert self.replay.recorded in (self.model.recorded - 1, self.model.recorded)
        if self.replay.recorded < self.model.recorded:
            self.replay.record(**step)

    # --- copies ---

    @rule(how=st.sampled_from([copy.deepcopy, lambda replay: pickle.loads(pickle.dumps(replay))]))
    def copy(self, how: object) -> None:
        """A copy in memory takes the place of the original; one of a lake holds the same and is dropped."""
        original, self.replay = self.replay, how(self.replay)
        assert self.replay._rng.random() == original._rng.random()
        if self.on_disk:
            self.holds_what_is_live()
            self.counts_add_up()
            with pytest.raises(lp.LakeReadOnly):
                self.replay.record(**{**self.first_step(), "stream": 0})
            self.replay = original

    def first_step(self) -> dict:
        obs = self.world.observe(0, 0)
        rest = {"reward": 0.0, "terminated": False, "truncated": False, "log_prob": 0.0}
        return {"obs": obs, "next_obs": obs, "action": np.zeros(2, np.float32), **rest}

    @precondition(lambda self: self.on_disk)
    @rule(commit=st.booleans())
    def reopen(self, commit: bool) -> None:
        """Closed and opened again: the same steps are live, and those that were cleared stay so."""
        if commit:
            self.replay.commit()
        state = self.replay._rng.bit_generator.state
        self.replay.close()
        self.replay = lp.Replay.open(self.folder / "lake", capacity=self.replay.capacity, alpha=self.alpha)
        if commit:
            assert self.replay._rng.bit_generator.state == state
        if self.alpha is not None:  # priorities that were not committed are lost
            priorities, live = self.replay._pond.priorities, self.model.live()
            weights = priorities.weights(self.replay._pond.places(np.array(live, int)))
            if commit:
                self.priorities_agree()
            found = weights ** (1 / self.alpha) - EPSILON
            self.priority, self.largest = dict(zip(live, found.tolist(), strict=True)), priorities.largest

    @rule(how=st.sampled_from(["lake", "replay"]))
    def snapshot(self, how: str) -> None:
        """A snapshot has the live steps and their links; the replay is not bound to it."""
        path = self.snapshot_path(self.replay)
        original = self.replay
        if how == "replay":
            with lp.Replay.open_saved(path, original.capacity, alpha=self.alpha) as self.replay:
                self.holds_what_is_live()
                self.counts_add_up()
                self.priorities_agree()
                self.links_agree()
        elif live := self.model.live():
            with lp.Lake.open(path) as lake:
                self.all_agree(lake.steps(live), live)
        self.replay = original

    @precondition(lambda self: self.forks)
    @rule(stream=st.integers(0, STREAMS - 1))
    def fork(self, stream: int) -> None:
        """A child holds the same; in memory it may record on its own, to a lake it may not."""
        child = os.fork()
        if not child:
            try:
                self.holds_what_is_live()
                if self.on_disk:
                    with pytest.raises(lp.ForkedReplay):
                        self.replay.record(**{**self.first_step(), "stream": 0})
                else:
                    self.replay.record(**self.step_of(stream, False, False))
                    self.holds_what_is_live()
                    self.counts_add_up()
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0

    def teardown(self) -> None:
        if hasattr(self, "replay"):
            self.replay.close()
            shutil.rmtree(self.folder)

    # --- comparing ---

    def agrees(self, batch: lp.Batch, i: int, step_id: int, last_id: int | None = None) -> None:
        step = self.model.all[step_id]
        if last_id is None:
            assert batch.reward[i] == step["reward"]
        last = self.model.all[step_id if last_id is None else last_id]
        assert batch.step_id[i] == step_id
        assert batch.stream[i] == step["stream"]
        assert same_bytes(item(batch.obs, i), step["obs"])
        assert same_bytes(item(batch.next_obs, i), last["next_obs"])
        assert same_bytes(batch.action[i], step["action"])
        assert batch.extras["log_prob"][i] == step["log_prob"]
        assert batch.terminated[i] == last["terminated"]
        assert batch.truncated[i] == last["truncated"]

    def all_agree(self, batch: lp.Batch, ids: list[int]) -> None:
        """Compare single steps with the model, all at once."""
        steps = [self.model.all[step_id] for step_id in ids]
        assert batch.step_id.tolist() == ids
        for name in ("stream", "reward", "terminated", "truncated"):
            assert getattr(batch, name).tolist() == [step[name] for step in steps]
        assert batch.extras["log_prob"].tolist() == [step["log_prob"] for step in steps]
        for name in ("obs", "next_obs", "action"):
            assert same_bytes(getattr(batch, name), stack([step[name] for step in steps]))

    @precondition(lambda self: self.model.live())
    @rule(n=st.integers(1, 6), seed=st.integers(0, 9))
    def sample(self, n: int, seed: int) -> None:
        batch = self.replay.sample(n, rng=np.random.default_rng(seed))
        again = self.replay.sample(n, rng=np.random.default_rng(seed), out=batch)
        assert again.reward is batch.reward
        for i, step_id in enumerate(batch.step_id.tolist()):
            assert step_id in self.model.live()
            assert batch.discount[i] == (not self.model.all[step_id]["terminated"])
            self.agrees(batch, i, step_id)

    @precondition(lambda self: self.model.live())
    @rule(n=st.integers(2, 5), seed=st.integers(0, 9))
    def sample_n_step(self, n: int, seed: int) -> None:
        batch = self.replay.sample(4, rng=np.random.default_rng(seed), n_step=n, gamma=0.5)
        for i, step_id in enumerate(batch.step_id.tolist()):
            last, total, discount = self.model.n_step(step_id, n, 0.5)
            assert batch.reward[i] == pytest.approx(total)
            assert batch.discount[i] == pytest.approx(discount)
            self.agrees(batch, i, step_id, last)

    @precondition(lambda self: self.model.live())
    @rule(length=st.integers(1, 6), cross=st.booleans(), seed=st.integers(0, 9))
    def sample_sequences(self, length: int, cross: bool, seed: int) -> None:
        possible = self.model.sequences(length, cross)
        rng = np.random.default_rng(seed)
        if not possible:
            with pytest.raises(lp.TooFewSteps):
                self.replay.sample(3, rng=rng, sequence_length=length, across_episodes=cross)
            return
        batch = self.replay.sample(3, rng=rng, sequence_length=length, across_episodes=cross)
        assert batch.weight.shape == (3,)
        for b in range(3):
            ids = tuple(batch.step_id[b].tolist())
            assert ids in possible
            for t, step_id in enumerate(ids):
                assert same_bytes(item(item(batch.obs, b), t), self.model.all[step_id]["obs"])
                assert batch.reward[b, t] == self.model.all[step_id]["reward"]

    @precondition(lambda self: self.model.live())
    @rule(share=st.floats(0, 1))
    def recent(self, share: float) -> None:
        live = self.model.live()
        count = max(1, int(share * len(live)))
        self.all_agree(self.replay.recent(count), live[-count:])

    @precondition(lambda self: self.model.live())
    @rule(stream=st.integers(0, STREAMS - 1), share=st.floats(0, 1))
    def recent_of_a_stream(self, stream: int, share: float) -> None:
        own = [i for i in self.model.live() if self.model.all[i]["stream"] == stream]
        count = max(1, int(share * len(own)))
        if not own:
            with pytest.raises(lp.UnknownStream):
                self.replay.recent(count, stream=stream)
            return
        assert self.replay.recent(count, stream=stream).step_id.tolist() == own[-count:]

    @precondition(lambda self: self.model.live())
    @rule(share=st.floats(0, 1), seed=st.integers(0, 9))
    def sample_without_replacement(self, share: float, seed: int) -> None:
        live, rng = self.model.live(), np.random.default_rng(seed)
        count = max(1, int(share * len(live)))
        batch = self.replay.sample(count, replace=False, rng=rng)
        assert len(set(batch.step_id.tolist()) & set(live)) == count
        with pytest.raises(lp.TooFewSteps):
            self.replay.sample(len(live) + 1, replace=False, rng=rng)

    @precondition(lambda self: self.model.live() and self.replay._pond.priorities is not None)
    @rule(seed=st.integers(0, 9))
    def update_priorities(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        ids, values = rng.integers(0, self.model.recorded, 4), 2 * rng.random(4)
        self.note_new_priorities()
        self.replay.update_priorities(ids, values)
        for step_id, value in zip(ids.tolist(), values.tolist(), strict=True):
            if step_id in self.model.live():  # evicted ones are ignored
                self.priority[step_id] = value
                self.largest = max(self.largest, value)

    def note_new_priorities(self) -> None:
        """New steps get the largest priority so far."""
        for step_id in self.model.live():
            self.priority.setdefault(step_id, self.largest)

    @invariant()
    def priorities_agree(self) -> None:
        if not hasattr(self, "model") or self.alpha is None or not self.model.live():
            return
        self.note_new_priorities()
        pond, live = self.replay._pond, self.model.live()
        with pond.reading():
            pond.update()
        expected = (np.array([self.priority[step_id] for step_id in live]) + EPSILON) ** self.alpha
        weights = pond.priorities.weights(pond.places(np.array(live)))
        np.testing.assert_allclose(weights, expected, rtol=1e-9)
        assert pond.priorities.total() == pytest.approx(expected.sum())
        self.links_agree()

    @rule()
    def links_agree(self) -> None:
        """The next step of every live step, and whether it continues the episode."""
        pond, live = self.replay._pond, self.model.live()
        with pond.reading():
            pond.update()
        ahead = pond.links.ahead[pond.places(np.array(live, int))].tolist()
        expected = []
        for step_id in live:
            within, across = (self.model.follow(step_id, 2, cross) for cross in (False, True))
            expected.append((across[-1] - step_id) * (1 if len(within) == 2 else -1))
        assert ahead == expected

    @invariant()
    def holds_what_is_live(self) -> None:
        if not hasattr(self, "model"):
            return
        live = self.model.live()
        assert len(self.replay) == len(live)
        if live:
            self.all_agree(self.replay.steps(live), live)

    @invariant()
    def counts_add_up(self) -> None:
        """Every slot is either named by a track entry that is held, or free; every index entry is true."""
        for leaf in self.replay._pond.leaves if hasattr(self, "replay") else []:
            if leaf.store is not None:
                leaf.store.check()


def walk(world: str, examples: int, **more: bool) -> None:
    machine = type("Machine", (ReplayMachine,), {"world_name": world, **more})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=examples, stateful_step_count=25, deadline=None)
    )


@pytest.mark.parametrize("world", WORLDS)
def test_replay_is_the_twin_of_a_plain_list(world: str) -> None:
    walk(world, WALKS)


def test_a_replay_with_a_lake_is_the_twin_of_a_plain_list() -> None:
    walk("dict and tuple", 10, on_disk=True)


@pytest.mark.parametrize("on_disk", [False, True])
def test_forked_children_hold_the_same(on_disk: bool) -> None:
    """In a process of its own, because this one may hold JAX, which must not be forked."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        pool.submit(walk, "frames first", 5, forks=True, on_disk=on_disk).result(timeout=300)
