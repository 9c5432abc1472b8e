"""The plan reproduces the table that was made by hand, and agrees with real lakes and ponds."""

from dataclasses import replace

import numpy as np
import pytest

import lakepond as lp
from lakepond.plan import PRESETS, Workload, make_plan
from lakepond.plan.measured import play, written
from lakepond.plan.needs import GB, PROCESS_BYTES, estimate, judge, reported_gb, uploads
from lakepond.plan.workload import FLOATS, IMAGES, parse_field

EIGEN2 = PRESETS["eigen2"]


def test_growth_is_that_of_the_story_in_its_units():
    assert EIGEN2.spec.step_nbytes / 2**20 == pytest.approx(3.74, abs=0.005)
    story = {1: 7.5, 5: 37.4, 10: 74.8, 15: 112.2, 20: 149.6, 25: 187}
    assert {generation: round(reported_gb(EIGEN2, generation), 1) for generation in story} == story
    for generation, growth in enumerate(make_plan(EIGEN2).growth, 1):
        assert (growth.generation, growth.steps) == (generation, 2_000 * generation)
        assert growth.plain == growth.steps * EIGEN2.spec.step_nbytes  # in bytes, as disks are sold
    low, high = (share * reported_gb(EIGEN2, 25) for share in EIGEN2.shares.gzip)
    assert (round(low), round(high)) == (62, 75)


def test_the_parts_of_the_disk_are_those_of_the_story():
    parts = {part.name: part.bytes for part in make_plan(EIGEN2).parts}
    assert parts["system"] == (15 * GB, 20 * GB)
    assert parts["data"] == (0.5 * GB, 0.5 * GB)
    assert parts["population, 16 x 15 MB"] == (0.24 * GB, 0.24 * GB)
    assert parts["best agent, 15 MB"] == (0.015 * GB, 0.015 * GB)
    assert parts["margin"] == (20 * GB, 30 * GB)
    assert {"libraries", "logs", "temporary files"} <= parts.keys()


def test_plainly_it_fills_the_250_gb_that_were_rented_and_here_it_fits_70():
    plan = make_plan(EIGEN2)
    assert plan.plain.disk[0] < 250 * GB < plan.plain.disk[1]
    assert plan.lakepond.disk[1] < 70 * GB


def test_uploads_were_about_900_gb_where_250_were_meant_and_are_each_byte_once():
    plan = make_plan(EIGEN2)
    assert plan.upload_of_folder[0] == pytest.approx(900 * GB, rel=0.05)
    assert plan.gzip.upload[1] == pytest.approx(250 * GB, rel=0.05)
    agents = 25 * 17 * 15_000_000
    assert plan.lakepond.upload == tuple(size + agents for size in plan.growth[-1].lakepond)


def test_uploads_by_walking_worked_by_hand():
    # saved at 2 and 4; walked at 2, 3 and 4; twice where it is saved
    assert uploads([1.0, 2.0, 3.0, 4.0], every=2) == (2 + 2 + 2 + 4 + 4, 2 + 4)


def test_187_gb_hold_well_under_a_fifth_of_a_gb():
    assert make_plan(EIGEN2).lakepond.replay[1] < 0.2 * GB
    assert EIGEN2.distinct_rows(EIGEN2.steps) == 2_500


def test_a_second_copy_is_what_saving_took():
    assert make_plan(EIGEN2).plain.memory > 175 * GB  # "Cannot allocate memory" at generation 25


def test_a_million_atari_transitions_are_about_40_gb():
    assert make_plan(PRESETS["gravitar"]).plain.replay[1] == pytest.approx(40 * GB, rel=0.1)


def test_the_verdict_names_what_is_too_small():
    plan = make_plan(EIGEN2)
    fits = judge(plan.lakepond, disk=70 * GB, memory=16 * GB, new=True)
    assert fits.fits
    assert fits.why == ()
    small = judge(plan.plain, disk=50 * GB, memory=175 * GB, new=True)
    assert not small.fits
    assert "258 GB of disk, but 50 GB is free" in small.why[0]
    assert "394 GB of memory, but 175 GB is available" in small.why[1]
    assert judge(plan.lakepond, disk=40 * GB, memory=16 * GB, new=False).fits  # the system is there already


@pytest.mark.parametrize("wrong", [{"generations": 0}, {"per_generation": -1}, {"pool": 0}, {"episode": 0}])
def test_a_workload_that_cannot_be_is_refused(wrong):
    with pytest.raises(lp.SpecError, match="at least 1"):
        replace(EIGEN2, **wrong)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("504,108,9:float32", lp.Field((504, 108, 9), "float32")),
        ("108,2", lp.Field((108, 2), "float32")),
        (":int64", lp.Field((), "int64")),
    ],
)
def test_a_field_is_written_as_shape_and_dtype(text, field):
    assert parse_field(text) == field


@pytest.mark.parametrize("text", ["5,x", "4:float99", "0,2"])
def test_a_field_that_cannot_be_is_refused(text):
    with pytest.raises(lp.SpecError):
        parse_field(text)


# --- against what is really there ----------------------------------------------------------------


def fill(
    replay: lp.Replay, source: lp.RowSource, per_generation: int, generations: int, agents: int = 4
) -> None:
    """Agents walk over one history, from a random day on in each episode of 20 steps."""
    rng = np.random.default_rng(0)
    length, days = 63, len(source)
    for _ in range(generations):
        for t in range(per_generation // agents):
            if t % 20 == 0:
                stop = rng.integers(length, days - 21, agents)
            replay.record(
                obs=lp.WindowRef(source, stop),
                action=rng.random((agents, 24, 2), np.float32),
                reward=rng.random(agents).astype(np.float32),
                next_obs=lp.WindowRef(source, stop + 1),
                terminated=np.zeros(agents, bool),
                truncated=np.full(agents, t % 20 == 19),
            )
            stop = stop + 1
        replay.commit()


@pytest.fixture(scope="module")
def market(tmp_path_factory):
    """A real lake of a market workload, and that workload."""
    path = tmp_path_factory.mktemp("market") / "lake"
    history = np.random.default_rng(1).standard_normal((500, 24, 9)).astype(np.float32)
    spec = lp.Spec(lp.Field((63, 24, 9), "float32", rows=0), lp.Field((24, 2), "float32"))
    workload = Workload(spec, per_generation=400, generations=5, pool=500, episode=20)
    with lp.Replay.open(path, spec, capacity=2_000) as replay:
        fill(replay, lp.RowSource(history), 400, 5)
        held = replay.stats().bytes_held
    return path, workload, held


def test_the_estimate_of_the_lake_holds_for_a_real_one(market):
    path, workload, _ = market
    with lp.Lake.open(path) as lake:
        real = lake.stats()
    files = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    low, high = estimate(workload, real.recorded)
    assert low <= real.bytes_on_disk <= files <= high
    assert high < 1.4 * real.bytes_on_disk
    assert workload.distinct_rows(real.recorded) == pytest.approx(real.rows, rel=0.1)


def test_the_estimate_of_memory_holds_for_a_real_pond(market):
    _, workload, held = market
    planned = make_plan(workload).lakepond.memory - PROCESS_BYTES
    assert planned == pytest.approx(held, rel=0.15)


@pytest.mark.parametrize("game", ["ALE/Gravitar-v5", "ALE/SpaceInvaders-v5"])
def test_the_estimate_holds_for_frames_of_real_games(game, tmp_path):
    import ale_py
    import gymnasium

    gymnasium.register_envs(ale_py)
    env = gymnasium.make(game, obs_type="grayscale")
    env.action_space.seed(0)
    frames = [env.reset(seed=0)[0][::2, ::2]] * 4
    spec = lp.Spec(lp.Field((4, 105, 80), "uint8", rows=0))
    with lp.Replay.open(tmp_path / "lake", spec, capacity=500) as replay:
        for t in range(500):
            action = env.action_space.sample()
            frames.append(env.step(action)[0][::2, ::2])
            replay.record(
                obs=np.stack(frames[t : t + 4]),
                action=action,
                reward=0.0,
                next_obs=np.stack(frames[t + 1 : t + 5]),
                terminated=False,
                truncated=False,
            )
    env.close()
    low, high = estimate(Workload(spec, 500, 1, shares=IMAGES), 500)
    with lp.Lake.open(tmp_path / "lake") as lake:
        assert low <= lake.stats().bytes_on_disk <= high


def test_a_lake_goes_on_as_it_was_measured(market):
    path, workload, _ = market
    measured = written(path)
    assert (measured.commit, measured.steps, measured.per_commit) == (4, 2_000, 400)
    step = workload.column_bytes
    assert (
        0.5 * step < measured.bytes_per_step < 1.5 * step
    )  # all rows are known by then: only columns are new
    low, high = measured.size(4_000)
    assert low == pytest.approx(measured.bytes + 2_000 * measured.bytes_per_step)
    assert high > low


def test_growth_is_measured_over_the_newer_half_of_the_steps(tmp_path):
    with lp.Replay.open(tmp_path / "lake", lp.Spec(lp.Field((4,)))) as replay:
        for steps in (10, 50, 20, 20):
            obs, none = np.zeros((steps, 4), np.float32), np.zeros(steps, bool)
            replay.record(
                obs=obs,
                action=np.zeros(steps, np.int64),
                reward=np.zeros(steps, np.float32),
                next_obs=obs,
                terminated=none,
                truncated=none,
                stream=0,
            )
            replay.commit()
    assert written(tmp_path / "lake").per_commit == 20


def test_an_environment_is_measured_by_playing_it():
    seen = play("CartPole-v1", 200)
    assert seen.spec.obs == lp.Field((4,), "float32")
    assert seen.rows == "whole"
    assert 0 < seen.shares.columns[0] <= seen.shares.columns[1] <= 1
    assert play("CartPole-v1", 0).shares == FLOATS  # nothing was played


def test_an_environment_that_is_not_there_is_one_sentence():
    with pytest.raises(lp.SpecError, match="cannot make the environment 'Nowhere-v9'"):
        play("Nowhere-v9", 10)
