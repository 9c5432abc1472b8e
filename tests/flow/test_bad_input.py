"""Bad input: one clear sentence with the numbers and the next step, and nothing recorded by half."""

import copy
import dataclasses
import warnings
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import lakepond as lp
from lakepond.flow.device_to_lake import DeviceLake
from lakepond.runs import Run

SPEC = lp.Spec(
    obs={"image": lp.Field((4, 8, 8), "uint8"), "speed": lp.Field((3,), "float32")},
    action=lp.Field((2,), "float32"),
    extras={"log_prob": lp.Field((), "float32")},
)


def step(**changes: object) -> dict:
    fields = {
        "obs": {"image": np.zeros((4, 8, 8), np.uint8), "speed": np.zeros(3, np.float32)},
        "action": np.zeros(2, np.float32),
        "reward": 1.0,
        "next_obs": {"image": np.ones((4, 8, 8), np.uint8), "speed": np.zeros(3, np.float32)},
        "terminated": False,
        "truncated": False,
        "log_prob": 0.5,
    }
    fields.update(changes)
    return {name: value for name, value in fields.items() if value is not None}


def batch_of(n: int, **changes: object) -> dict:
    fields = {
        "obs": {"image": np.zeros((n, 4, 8, 8), np.uint8), "speed": np.zeros((n, 3), np.float32)},
        "action": np.zeros((n, 2), np.float32),
        "reward": np.zeros(n, np.float32),
        "next_obs": {"image": np.ones((n, 4, 8, 8), np.uint8), "speed": np.zeros((n, 3), np.float32)},
        "terminated": np.zeros(n, bool),
        "truncated": np.zeros(n, bool),
        "log_prob": np.zeros(n, np.float32),
    }
    return fields | changes


IMAGE, SPEED = np.zeros((4, 8, 8), np.uint8), np.zeros(3, np.float32)

BAD = {
    "missing field": (step(reward=None), "missing 'reward'"),
    "missing extra": (step(log_prob=None), r"extra fields none, the Spec declares \['log_prob'\]"),
    "unknown extra": (step(entropy=1.0), r"\['entropy', 'log_prob'\]"),
    "missing key": (step(obs={"image": IMAGE}), r"keys \['image', 'speed'\]"),
    "no dict": (step(obs=IMAGE), "must be a dict"),
    "shape": (step(obs={"image": IMAGE[:3], "speed": SPEED}), r"\[3, 8, 8\].*\[4, 8, 8\]"),
    "shape of next_obs": (step(next_obs={"image": IMAGE[:3], "speed": SPEED}), r"next_obs\['image'\]"),
    "dtype": (
        step(obs={"image": IMAGE.astype(float), "speed": SPEED}),
        "float64, but the Spec declares uint8",
    ),
    "action shape": (step(action=np.zeros(3)), r"action has the shape \[3\]"),
    "float for bool": (
        step(terminated=1.0),
        r"terminated is float64, but the Spec declares bool; convert it with bool\(terminated\)",
    ),
    "floats for bools": (batch_of(4, terminated=np.zeros(4)), r"with \.astype\(bool\)"),
    "done": (step(done=False, terminated=None, truncated=None), "split into terminated, .* and truncated"),
    "no next_obs": (
        step(next_obs={"image": IMAGE, "speed": None}),
        r"next_obs\['speed'\] is None, .*; pass its last observation at the end of an episode",
    ),
    "no reward": (batch_of(4, reward=None), "reward is None"),
    "list": (
        step(obs={"image": IMAGE, "speed": [0.0, 0.0, 0.0]}),
        r"obs\['speed'\] is a list, .* float64, .*; pass np\.asarray\(obs\['speed'\], \"float32\"\)",
    ),
    "ragged list": (
        step(obs={"image": [[0], [0, 0]], "speed": SPEED}),
        r"obs\['image'\] is not a valid array",
    ),
    "text": (step(reward="high"), "reward is str"),
    "lengths": (batch_of(4, reward=np.zeros(5, np.float32)), r"reward has the shape \[5\].*4 steps"),
    "stream": (step(stream=-1), r"\[0, 2147483647\]"),
    "stream name": (step(stream="agent"), "integer"),
    "streams": (batch_of(4, stream=np.arange(3)), "array of 4"),
}


@pytest.mark.parametrize(("fields", "says"), BAD.values(), ids=BAD)
def test_record_refuses_and_changes_nothing(fields, says):
    replay = lp.Replay(SPEC, 10)
    replay.record(**step())
    before = replay.recent(1)
    with pytest.raises(lp.RecordError, match=says) as caught:
        replay.record(**fields)
    assert isinstance(caught.value, ValueError)
    assert str(caught.value).endswith(".")
    assert len(replay) == 1
    assert replay.recent(1).obs["image"].tobytes() == before.obs["image"].tobytes()
    replay.record(**step())
    assert len(replay) == 2


def test_a_bad_batch_after_many_good_ones_is_refused_too():
    """Batches that look like the last one are not looked at again; one that does not look like it is."""
    replay = lp.Replay(SPEC, 100)
    for _ in range(3):
        replay.record(**batch_of(4))
    with pytest.raises(lp.RecordError):
        replay.record(**batch_of(4, reward=np.zeros(3, np.float32)))
    with pytest.raises(lp.RecordError):
        replay.record(**batch_of(4, action=np.zeros((4, 3), np.float32)))
    assert len(replay) == 12


def test_numbers_of_one_kind_are_converted_and_values_never_changed():
    replay = lp.Replay(lp.Spec(obs=lp.Field((), "int64"), action=lp.Field((), "int8")), 10)
    good = {"obs": 1, "next_obs": 2, "reward": 1, "terminated": False, "truncated": np.False_}
    replay.record(action=5, **good)
    with pytest.raises(lp.RecordError, match="action is 300, outside the range of int8"):
        replay.record(action=300, **good)
    with pytest.raises(lp.RecordError, match="action is int64, but the Spec declares int8"):
        replay.record(action=np.int64(300), **good)
    with pytest.raises(lp.RecordError, match="action is float64"):
        replay.record(action=1.5, **good)
    assert replay.recent(1).action.tolist() == [5]


@pytest.mark.parametrize(
    ("dtype", "value"), [("int8", 300), ("int64", 2**70), ("uint64", -1), ("float32", 10**400)]
)
def test_a_number_too_large_is_refused_also_after_good_ones(dtype, value):
    replay = lp.Replay(lp.Spec(obs=lp.Field((), "int64"), action=lp.Field((), dtype)), 10)
    good = {"obs": 1, "next_obs": 2, "reward": 1, "terminated": False, "truncated": False}
    for action in (1, 2):
        replay.record(action=action, **good)
    with pytest.raises(lp.RecordError, match=f"outside the range of {dtype}"):
        replay.record(action=value, **good)
    replay.record(action=3, **good)
    assert replay.recent(3).action.tolist() == [1, 2, 3]


SIMPLE = lp.Spec(obs=lp.Field((), "int64"), action=lp.Field((), "float32"), reward=lp.Field((), "float32"))
LARGE = [1e300, -1e300, 10**300, np.float64(1e300), np.longdouble(1e300), np.array(-1e300), np.int64(2**62)]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("fast", [True, False], ids=["fast path", "with extras"])
@pytest.mark.parametrize("name", ["reward", "action", "extra"])
@pytest.mark.parametrize("large", LARGE, ids=lambda value: f"{type(value).__name__} {value:.0e}")
def test_a_number_that_would_be_stored_as_infinity_is_refused(name, large, fast):
    narrow = lp.Field((), "float16" if isinstance(large, np.int64) else "float32")
    changed = {"extras": {"extra": narrow}} if name == "extra" else {name: narrow}
    if not fast:
        changed |= {"extras": {"extra": narrow}}
    spec = dataclasses.replace(SIMPLE, **changed)
    replay = lp.Replay(spec, 10)
    good = {"obs": 1, "next_obs": 2, "reward": 1.5, "action": 0.5, "terminated": False, "truncated": False}
    good |= {"extra": 0.0} if spec.extras else {}
    batch = {key: np.full(2, value) for key, value in good.items()} | {"stream": 0}
    for accepted in (good, batch):
        replay.record(**accepted)
    both = np.array([0, float(large) if type(large) is int else large])
    for refused in (good | {name: large}, batch | {name: both}):
        with pytest.raises(lp.RecordError, match=f"{name}.* outside the range of float"):
            replay.record(**refused)
    stored = np.inf, -np.inf, 60_000.0, np.float64(60_000)  # what fits; an infinite number stays what it is
    for value in stored:
        replay.record(**good | {name: value})
    replay.record(**batch | {name: np.array([np.inf, 60_000])})
    found = replay.recent(9)
    values = found.extras["extra"] if name == "extra" else getattr(found, name)
    assert values[3:].tolist() == [*stored, np.inf, 60_000]


@pytest.mark.parametrize("dtype", ["float16", "float32", ">f4", "float64", "longdouble"])
def test_nan_rewards_are_stored_and_warned_of_once_before_they_are_sampled(dtype):
    replay = lp.Replay(dataclasses.replace(SPEC, reward=lp.Field((), dtype)), 10)
    replay.record(**step(reward=np.nan))
    with pytest.warns(RuntimeWarning, match="NaN"):
        replay.sample(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        replay.record(**step(reward=np.nan))
        replay.record(**step(reward=np.inf))
        replay.sample(3)
    assert np.isnan(replay.recent(3).reward[:2]).all()


def test_a_nan_reward_is_warned_of_while_recording_if_nobody_samples():
    replay = lp.Replay(SPEC, 10)
    with pytest.warns(RuntimeWarning, match="NaN"):
        replay.record(**batch_of(5, reward=np.full(5, np.nan)))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        *(({"capacity": wrong}, "at least 1") for wrong in (0, -1, 2.5, "many", True)),
        *(({"alpha": wrong}, "alpha must be a finite number") for wrong in ("0.6", -1, np.inf, np.nan)),
        ({"spec": 100}, "needs a Spec, not int"),
    ],
)
def test_arguments_of_a_replay(tmp_path, arguments, says):
    arguments = {"spec": SPEC, "capacity": 10} | arguments
    with pytest.raises(lp.SpecError, match=says):
        lp.Replay(**arguments)
    with pytest.raises(lp.SpecError, match=says):
        lp.Replay.open(tmp_path / "lake", **arguments)
    assert not (tmp_path / "lake").exists()


def test_a_capacity_that_cannot_be():
    with pytest.raises(lp.SpecError, match="lower it"):
        lp.Replay(SPEC, 10**15)


def test_an_empty_replay():
    replay = lp.Replay(SPEC, 10)
    rng = np.random.default_rng(0)
    with pytest.raises(lp.TooFewSteps, match="has no steps"):
        replay.sample(1, rng=rng)
    with pytest.raises(lp.TooFewSteps, match="0 are stored"):
        replay.recent(1)
    replay.record(**step())
    replay.clear()
    with pytest.raises(lp.TooFewSteps, match="has no steps"):  # not that none was recorded
        replay.sample(1, rng=rng)


def test_a_replay_too_small():
    replay = lp.Replay(SPEC, 10)
    rng = np.random.default_rng(0)
    for _ in range(3):
        replay.record(**step())
    with pytest.raises(lp.TooFewSteps, match=r"4 different steps.*only 3"):
        replay.sample(4, rng=rng, replace=False)
    with pytest.raises(lp.TooFewSteps, match="4 consecutive steps of one stream within an episode"):
        replay.sample(1, rng=rng, sequence_length=4)
    with pytest.raises(lp.TooFewSteps, match=r"step 3 was never recorded: the replay has the steps \[0, 3\)"):
        replay.steps([1, 3])
    with pytest.raises(lp.TooFewSteps, match="step -1 is not valid"):
        replay.steps([1, -1])
    assert replay.steps([]).obs["image"].shape == (0, 4, 8, 8)
    with pytest.raises(lp.SampleError, match="count must be an integer, at least 1, but is 0"):
        replay.recent(0)
    with pytest.raises(lp.UnknownStream, match=r"stream 7; the live streams are \[0\]"):
        replay.recent(1, stream=7)


def test_arguments_of_sample():
    replay = lp.Replay(SPEC, 10)
    replay.record(**step())
    rng = np.random.default_rng(0)
    for changes, says in [
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": True}, "batch_size must be an integer, at least 1, but is True"),
        ({"rng": 7}, "Generator"),
        ({"n_step": 0}, "n_step"),
        ({"gamma": 1.5}, "gamma"),
        ({"sequence_length": 0}, "length"),
        ({"sequence_length": 2, "n_step": 2, "gamma": 0.9}, "without n_step"),
        ({"beta": 0.4}, "alpha"),
        ({"beta": -1}, "beta must be a finite number, at least 0, but is -1"),
        ({"beta": np.nan}, "beta must be"),
        ({"beta": "0.4"}, "beta must be"),
        ({"n_step": 3.0}, "n_step must be an integer"),
        ({"gamma": "0.99"}, r"gamma must be a number in \[0, 1\] but is '0.99'"),
        ({"sequence_length": 2.0}, "sequence_length must be an integer"),
        ({"out": {}}, "out must be a Batch that this replay returned, not dict"),
    ]:
        with pytest.raises(lp.SampleError, match=says):
            replay.sample(**({"batch_size": 1, "rng": rng} | changes))
    with pytest.raises(lp.SpecError, match=r"fill_from takes a lake.*Lake\.open"):
        replay.fill_from("lake", 1, rng=rng)
    with pytest.raises(lp.SpecError, match="takes a dict of sources with their shares"):
        lp.mix([replay, replay])
    with pytest.raises(lp.SampleError, match="no priorities"):
        replay.update_priorities([0], [1.0])


def test_out_of_another_shape():
    replay = lp.Replay(SPEC, 10)
    replay.record(**step())
    rng = np.random.default_rng(0)
    with pytest.raises(lp.SampleError, match=r"out\..*\[4.*needs.*\[5"):
        replay.sample(5, rng=rng, out=replay.sample(4, rng=rng))


def test_priorities():
    replay = lp.Replay(SPEC, 10, alpha=0.6)
    replay.record(**step())
    for ids, values, says in [
        ([0], [-1.0], "at least 0"),
        ([0], [np.nan], "finite"),
        ([0, 1], [1.0], "one priority for each"),
        ([1], [1.0], "never recorded"),
        ([-1], [1.0], "never recorded"),
    ]:
        with pytest.raises(lp.SampleError, match=says):
            replay.update_priorities(ids, values)
    replay = lp.Replay(SPEC, 10, alpha=1.0)
    replay.record(**step())
    with pytest.raises(lp.SampleError, match=r"below 1e\+290"):  # the sum of two such would be infinite
        replay.update_priorities([0], [1.7e308])


@pytest.mark.parametrize("call", ["commit", "flush", "lake", "push", "upload_status", "wait_for_uploads"])
def test_what_needs_a_lake_says_that_the_replay_is_in_memory_only(call):
    replay = lp.Replay(SPEC, 10)
    with pytest.raises(lp.LakeError, match=r"in memory only; create it with Replay\.open"):
        getattr(replay, call)()
    replay.close()
    with pytest.raises(lp.ReplayClosed, match="closed"):
        getattr(replay, call)()


def test_after_close():
    with lp.Replay(SPEC, 10) as replay:
        replay.record(**step())
    with pytest.raises(lp.ReplayClosed, match="closed"):
        replay.record(**step())
    assert replay.recent(1).reward.tolist() == [1.0]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: lp.Field((0, 3)), "empty axis"),
        (lambda: lp.Field((3,), object), "Python objects"),
        (lambda: lp.Field((3,), "no such"), "not a valid shape and dtype"),
        (lambda: lp.Field((4,), "str"), "no fixed width"),
        (lambda: lp.Field(4, "float32"), r"Field\(4, 'float32'\): write the shape as \(4,\)"),
        (lambda: lp.Field("float32", (4,)), r"the order is Field\(shape, dtype\)"),
        (lambda: lp.Field(np.float32), r"the order is Field\(shape, dtype\)"),
        (lambda: lp.Field((2.5,), "float32"), "not a valid shape and dtype"),
        (lambda: lp.Spec(obs=((4,), "float32")), r"give a Field, like lp\.Field\(\(4,\), 'float32'\)"),
        (lambda: lp.Field((3, 4, 5), rows=3), "has no axis 3"),
        (lambda: lp.Field((9, 4, 5), rows=(0, 2)), "divided into rows of 2; give a divisor of 9"),
        (lambda: lp.Field((), rows=0), "no axis"),
        (lambda: lp.Spec(obs={}), "no field"),
        (lambda: lp.Spec(obs=np.zeros(3)), "give a Field"),
        (lambda: lp.Spec(obs=lp.Field(()), extras={"reward": lp.Field(())}), "none of"),
        (lambda: lp.Spec(obs=lp.Field(()), extras=["v"]), "extras is list; give a dict"),
        (lambda: lp.RowSource(np.array([None])), "array of rows"),
        (lambda: lp.RowSource(3.0), r"array of rows, not float64\[\]"),
        (lambda: lp.Field((2**62, 30), "uint8"), "138,350,580,552,821,637,120 bytes; the most is 1 TiB"),
    ],
)
def test_specs(make, says):
    with pytest.raises(lp.SpecError, match=says):
        make()


def full() -> lp.Replay:
    replay = lp.Replay(SPEC, 10)
    replay.record(**step())
    return replay


WRITES = {
    "open": lambda path: lp.Replay.open(path, SPEC).close(),
    "save": lambda path: full().save(path),
    "snapshot": lambda path: full().snapshot(path),
    "device": lambda path: DeviceLake(path, lp.Spec(lp.Field((8,), "uint8"))).close(),
    "pull": lambda path: lp.pull(path, "memory://nothing"),
}
READS = {
    "read": lambda path: lp.Lake.open(path),
    "repair": lp.repair,
    "push": lambda path: lp.push(path, "memory://nothing"),
    "follow": lambda path: lp.Replay.follow(path),
    "run": Run.open,
}


@pytest.mark.parametrize("how", [*WRITES, *READS])
def test_paths(how, tmp_path, monkeypatch):
    """A URL and a file in place of a folder are refused, nothing is created, and ~ is the home folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "file").write_text("")
    call = (WRITES | READS)[how]
    for url in ("s3://b/x", Path("s3://b/x")):
        if how not in ("read", "follow") or isinstance(url, Path):
            with pytest.raises(
                lp.SpecError, match=r"must be on this disk; pass the bucket as cloud='s3://bucket/prefix'"
            ):
                call(url)
    for path in ("file", "file/below") if how in WRITES else ():
        with pytest.raises(NotADirectoryError, match=r"^\[Errno 20\] file is a file, not a folder") as error:
            call(path)
        assert isinstance(error.value, lp.LakeError)
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
    with (
        suppress(lp.CloudNotFound) if how in WRITES else pytest.raises(FileNotFoundError, match=str(tmp_path))
    ):
        call("~/lake")
    assert (tmp_path / "home" / "lake" / "lake.json").exists() == (how in WRITES and how != "pull")
    assert not (tmp_path / "~").exists()


@pytest.mark.parametrize(
    "url", ["gs://b/run?sig=SECRET", "gs:/b/run?sig=SECRET", "s3://user:SECRET/w@b/x", "s3:/SECRET@b/x"]
)
@pytest.mark.parametrize("of", [str, Path])
def test_a_secret_in_a_url_is_not_in_the_error(url, of):
    with pytest.raises(lp.SpecError, match=rf"pass the bucket as cloud='{url[:2]}://bucket/prefix'") as error:
        lp.Replay.open(of(url), SPEC, 10)
    assert "SECRET" not in str(error.value)


def test_a_folder_that_the_system_does_not_create():
    with pytest.raises(lp.LakeNotFound, match="/proc/none cannot be created; choose another folder"):
        lp.Replay.open("/proc/none/lake", SPEC)


def test_opening_a_lake_that_does_not_exist_without_a_spec(tmp_path):
    for options, says in (
        ({}, "no lake at .*lake; pass a spec"),
        (
            {"cloud": f"file://{tmp_path}/bucket", "pull": "lazy"},
            "none was pulled from file:.*bucket; pass a",
        ),
    ):
        for kind in (lp.LakeNotFound, lp.SpecError):
            with pytest.raises(kind, match=says):
                lp.Replay.open(tmp_path / "lake", **options)


@pytest.mark.parametrize("good_before", [0, 3])
def test_window_refs(good_before):
    replay = lp.Replay(lp.Spec(obs=lp.Field((5, 3), "float32", rows=0)), 10)
    source = lp.RowSource(np.zeros((20, 3), np.float32))
    other = {"action": 0, "reward": 0.0, "terminated": False, "truncated": False}
    for stop in range(5, 5 + good_before):
        replay.record(obs=lp.WindowRef(source, stop), next_obs=lp.WindowRef(source, stop + 1), **other)
    for obs, says in [
        (lp.WindowRef(source, 4), r"\[5, 20\]"),
        (lp.WindowRef(source, 21), r"\[5, 20\]"),
        (lp.WindowRef(source, 5.5), "integer"),
        (lp.WindowRef(lp.RowSource(np.zeros((20, 4), np.float32)), 5), r"rows of float32\[4\]"),
        (lp.WindowRef(np.zeros((20, 3)), 5), "RowSource"),
    ]:
        with pytest.raises(lp.RecordError, match=says):
            replay.record(obs=obs, next_obs=lp.WindowRef(source, 6), **other)
    with pytest.raises(lp.RecordError, match="2 windows"):
        replay.record(obs=lp.WindowRef(source, 5), next_obs=lp.WindowRef(source, np.array([6, 7])), **other)
    assert len(replay) == good_before


def test_float64_observations_are_refused_unless_they_may_be_rounded(tmp_path):
    space = type("Box", (), {"shape": (3,), "dtype": np.dtype("float64")})()
    discrete = type("Discrete", (), {"shape": (), "dtype": np.dtype("int64")})()
    spec = lp.Spec.from_spaces(space, discrete, dtype="float32")
    assert spec.obs == lp.Field((3,), "float32")
    tree = type("Dict", (), {"spaces": {"a": space, "b": discrete}})()
    assert lp.Spec.from_spaces(tree, discrete, dtype="float32").obs == {
        "a": lp.Field((3,), "float32"),
        "b": lp.Field((), "int64"),
    }
    obs = np.array([0.1, 1e9, np.nan])

    def step(replay, **more):
        values = {
            "obs": obs,
            "next_obs": obs,
            "action": 0,
            "reward": 0.0,
            "terminated": False,
            "truncated": False,
        }
        return replay.record(**{**values, **more})

    with pytest.raises(lp.RecordError, match=r"obs is float64, but the Spec declares float32; .* cast=True"):
        step(lp.Replay(spec, 10))
    for replay in (lp.Replay(spec, 10, cast=True), lp.Replay.open(tmp_path / "lake", spec, 10, cast=True)):
        step(replay)
        batch = {"obs": obs[None]}
        with pytest.raises(lp.RecordError, match="next_obs has a number outside the range of float32"):
            step(replay, next_obs=np.full(3, 1e300))
        with pytest.raises(lp.RecordError, match=r"obs is int64, .* \(cast=True converts floats only\)"):
            step(replay, obs=np.zeros(3, np.int64))
        batch["next_obs"] = np.full((1, 3), np.inf)  # infinite already
        one = {"action": np.zeros(1, int), "reward": np.zeros(1), "terminated": np.zeros(1, bool)}
        step(replay, **batch, **one, truncated=np.zeros(1, bool))
        stored = replay.steps([0, 1])
        assert stored.obs.dtype == np.float32
        np.testing.assert_array_equal(stored.obs, np.stack([obs, obs]).astype(np.float32))
        assert np.isinf(stored.next_obs[1]).all()
        if replay._outflow is None:
            step(copy.deepcopy(replay))
        replay.close()


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"extras": {"log_prob": lp.Field((), "float32")}}, "spec: log_prob is new. Omit"),
        ({"obs": lp.Field((5,), "float32")}, r"spec: obs is float32\[5\], not float32\[4\]"),
        ({"obs": lp.Field((4,), "float32", rows=None)}, "spec: obs has rows=None, not rows='auto'"),
        ({"action": {"a": lp.Field(), "b": lp.Field()}}, r"action is missing; action\['a'\] is new"),
        ({"extras": {}, "reward": lp.Field((2,))}, r"spec: reward is float32\[2\], not float32\[\]"),
    ],
)
def test_opening_with_another_spec_names_the_fields_that_differ(tmp_path, changed, named):
    spec = lp.Spec(obs=lp.Field((4,), "float32"))
    lp.Replay.open(tmp_path / "lake", spec, capacity=10).close()
    with pytest.raises(lp.SpecError, match=named):
        lp.Replay.open(tmp_path / "lake", dataclasses.replace(spec, **changed), capacity=10)
    with lp.Replay.open(tmp_path / "lake", dataclasses.replace(spec), capacity=10):
        pass


def test_specs_that_nest_otherwise_differ():
    field = lp.Field((), "float32")
    assert lp.Spec(obs=(field,)).differences(lp.Spec(obs={0: field})) != ""
    assert lp.Spec(obs=(field,)).differences(lp.Spec(obs=[field])) == ""
