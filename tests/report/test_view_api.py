"""What `view` answers, against the steps that were recorded."""

import io
import json
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import view_lakes
from PIL import Image

import lakepond as lp
from lakepond.lake.elsewhere import Elsewhere
from lakepond.lake.format.ranges import meets
from lakepond.report.view import ViewServer
from lakepond.report.view.fields import kind_of
from lakepond.report.view.pictures import png
from lakepond.report.view.server import _json as as_json


def ask(server: ViewServer, name: str, **words):
    """An object, the bytes of a picture, or the lines of a check."""
    url = f"{server.address}api/{name}?{urllib.parse.urlencode(words)}"
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {server.token}"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        body, kind = answer.read(), answer.headers["Content-Type"]
    if kind == "application/x-ndjson":
        return [json.loads(line) for line in body.splitlines()]
    return body if kind == "image/png" else json.loads(body)


def refused(server: ViewServer, name: str, **words) -> tuple[int, str]:
    with pytest.raises(urllib.error.HTTPError) as caught:
        ask(server, name, **words)
    with caught.value as answer:
        return answer.code, json.loads(answer.read())["error"]


def finished(server: ViewServer, name: str, **words):
    """The answer when all episodes are known."""
    for _ in range(100):
        result = ask(server, name, **words)
        if result["progress"]["done"]:
            return result
        time.sleep(0.05)
    raise AssertionError(f"episodes are not known yet: {result['progress']}")


def unpack(data: bytes) -> np.ndarray:
    """The pixels of a PNG."""
    with Image.open(io.BytesIO(data), formats=["PNG"]) as picture:
        return np.asarray(picture)


def record_one(replay: lp.Replay, obs=None, **more) -> None:
    """A step that differs from the usual one in what is given."""
    obs = np.zeros(2, np.float32) if obs is None else obs
    step = {"action": 0, "reward": 1.0, "terminated": False, "truncated": False, "next_obs": obs}
    replay.record(obs=obs, **(step | more))


def plain_episodes(path: Path) -> list[tuple[int, int, int, int, float, str]]:
    """Stream, first, last, steps, return and end of every episode, found the slow way."""
    with lp.Lake.open(path) as lake:
        batch = lake.steps(lake.commit.oldest, lake.commit.recorded)
    going: dict[int, list[int]] = {}
    found = []
    for step in range(len(batch.step_id)):
        stream = int(batch.stream[step])
        going.setdefault(stream, []).append(step)
        end = "terminated" if batch.terminated[step] else "truncated" if batch.truncated[step] else "open"
        if end != "open":
            found.append((stream, going.pop(stream), end))
    found += [(stream, steps, "open") for stream, steps in going.items()]
    ids = batch.step_id
    return [
        (stream, int(ids[steps[0]]), int(ids[steps[-1]]), len(steps), float(batch.reward[steps].sum()), end)
        for stream, steps, end in found
    ]


@pytest.mark.parametrize("name", ["boards", "frames", "market", "vectors"])
def test_every_episode_is_found_with_its_return(lakes, shown, name):
    server = shown(name)
    result = finished(server, "episodes", limit=500, order="oldest")
    known = plain_episodes(lakes / name)
    got = {(e["stream"], e["first"]): e for e in result["episodes"]}
    assert result["of"] == len(known) == len(got)
    for stream, first, last, steps, total, end in known:
        one = got[stream, first]
        assert (one["last"], one["steps"], one["end"]) == (last, steps, end)
        assert one["total"] == pytest.approx(total, rel=1e-5, abs=1e-5)


def test_episodes_come_in_the_order_asked_for_a_page_at_a_time(lakes, shown):
    server = shown("boards")
    known = plain_episodes(lakes / "boards")
    best = [e["total"] for e in finished(server, "episodes", order="best", limit=500)["episodes"]]
    assert best == sorted((total for *_, total, _ in known), reverse=True)
    longest = [
        e["steps"] for e in finished(server, "episodes", order="longest", limit=7, offset=3)["episodes"]
    ]
    assert longest == sorted((steps for _, _, _, steps, _, _ in known), reverse=True)[3:10]
    mine = finished(server, "episodes", stream=2, limit=500)
    assert mine["of"] == sum(stream == 2 for stream, *_ in known)


def test_streams_add_up(lakes, shown):
    result = finished(shown("boards"), "streams")
    known = [e for e in plain_episodes(lakes / "boards") if e[5] != "open"]
    assert [s["steps"] for s in result["streams"]] == [600] * 4
    for stream in result["streams"]:
        mine = [e for e in known if e[0] == stream["stream"]]
        assert stream["episodes"] == len(mine)
        assert stream["mean"] == pytest.approx(np.mean([e[4] for e in mine]))
        assert (stream["best"], stream["newest"]) == (max(e[4] for e in mine), mine[-1][4])
    assert result["returns"][-1][0] == max(e[2] for e in known)


def test_an_episode_of_one_among_many_streams_has_its_own_steps_only(lakes, shown):
    server = shown("boards")
    stream, first, last, steps, total, end = max(plain_episodes(lakes / "boards"), key=lambda e: e[3])
    result = ask(server, "episode", stream=stream, first=first, last=last)
    assert (result["steps"], result["end"], result["first"], result["last"]) == (steps, end, first, last)
    assert result["return"][-1] == result["total"] == total
    with lp.Lake.open(lakes / "boards") as lake:
        batch = lake.steps(first, last + 1)
    mine = batch.stream == stream
    assert result["actions"][0]["values"] == batch.action[mine].tolist()
    at = steps // 2
    step = ask(server, "step", stream=stream, first=first, last=last, at=at)
    assert step["step"] == batch.step_id[mine][at]
    assert step["columns"]["epsilon"]["numbers"][0] == pytest.approx(
        batch.extras["epsilon"][mine][at], rel=1e-5
    )


def test_frames_are_shown_as_they_were_recorded(lakes, shown):
    server = shown("frames")
    with lp.Lake.open(lakes / "frames") as lake:
        batch = lake.steps(301, 600)
    mine = batch.obs[batch.stream == 1]
    words = {"stream": 1, "first": 301, "last": 599}
    strip = unpack(ask(server, "pictures", **words, at=20, count=5))
    np.testing.assert_array_equal(strip, mine[20:25, -1].reshape(-1, 84))
    stacks = unpack(ask(server, "pictures", **words, at=20, count=2, stack=1))
    np.testing.assert_array_equal(stacks[84:], np.concatenate(mine[21], axis=1))
    after = unpack(ask(server, "pictures", **words, at=20, count=1, which="next_obs"))
    np.testing.assert_array_equal(after, mine[21, -1])
    result = ask(server, "spec")["observations"][0]
    assert len(unpack(ask(server, "pictures", **words))) == 84 * result["strip"]


def test_a_board_has_a_colour_for_each_channel(lakes, shown):
    server = shown("boards")
    result = ask(server, "spec")["observations"][0]
    assert (result["kind"], len(set(result["colours"]))) == ("channels", 4)
    pixels = unpack(ask(server, "pictures", stream=0, first=0, last=0, count=1))
    with lp.Lake.open(lakes / "boards") as lake:
        board = lake.steps(0, 1).obs[0]
    for channel, colour in enumerate(result["colours"]):
        shown = (pixels == np.frombuffer(bytes.fromhex(colour[1:]), np.uint8)).all(axis=-1)
        first = board.argmax(axis=-1) == channel
        np.testing.assert_array_equal(shown, board[..., channel] & first)


def test_a_market_window_is_shown_an_instrument_at_a_time_with_its_entries(lakes, shown):
    server = shown("market")
    with lp.Lake.open(lakes / "market") as lake:
        batch = lake.steps(0, 240)
    mine = batch.stream == 3
    words = {"stream": 3, "first": 3, "last": 239}
    result = ask(server, "observation", **words, at=17, column=5)
    np.testing.assert_allclose(result["curves"]["close"], batch.obs[mine][17, :, 5, 1], rtol=1e-5)
    np.testing.assert_allclose(result["curves"]["rsi"], batch.obs[mine][17, :, 5, 4], rtol=1e-5)
    entries = ask(server, "episode", **words, threshold=0.9)["entries"]
    actions = batch.action[mine]
    held: dict[int, int] = {}
    expected = []
    for at, action in enumerate(actions):
        best = int(action[:, 0].argmax())
        if action[best, 0] >= 0.9 and at - held.get(best, -99) > 20:
            held[best] = at
            expected.append((at, best))
    assert [(e["at"], e["column"]) for e in entries] == expected
    assert entries[0]["target"] == pytest.approx(actions[entries[0]["at"], entries[0]["column"], 1])
    assert ask(server, "episode", **words, threshold=1e9)["entries"] == []


@pytest.mark.parametrize("credit", ["entry", "exit"])
def test_trades_are_told_as_the_market_made_them(serve, tmp_path, credit):
    folder, made = view_lakes.traded(tmp_path / "run", credit=credit, target_low=3.0)
    server = serve(folder / "lake")
    names = json.loads((folder / "market.json").read_text())
    assert ask(server, "spec")["symbols"] == names["symbols"]
    reasons = set()
    for stream, trades in enumerate(made):
        result = ask(server, "episode", stream=stream, first=40 * stream, last=40 * stream + 39)["trades"]
        first = 60 + 20 * stream
        assert [(t["at"], t["column"]) for t in result] == [
            (t.entry_day - first, t.instrument) for t in trades
        ]
        for one, trade in zip(result, trades, strict=True):
            seen = trade.exit_day < first + 40
            assert one["date"] == names["dates"][trade.entry_day]
            assert one["symbol"] == names["symbols"][trade.instrument]
            assert one["exit_at"] == (trade.exit_day - first if seen else None)
            assert one["exit_date"] == (names["dates"][trade.exit_day] if seen else None)
            assert one["exit_until"] == names["dates"][trade.exit_day if seen else first + 49]
            if credit == "entry":
                assert one["profit"] == pytest.approx(trade.profit, abs=1e-4)
            else:
                assert one["profit"] is None  # rewards of a day are then of all that closed on it
            if seen:
                assert one["closed_by"] == trade.reason
            else:
                assert one["closed_by"] in ("settlement", trade.reason)
            reasons.add(one["closed_by"])
    assert reasons >= {"target", "time", "settlement"}


def test_of_an_episode_that_has_not_ended_open_trades_stay_open(serve, tmp_path):
    folder, _ = view_lakes.traded(tmp_path / "run", episodes=1)
    result = ask(serve(folder / "lake"), "episode", stream=0, first=0, last=9)["trades"]
    assert {t["closed_by"] for t in result if t["exit_at"] is None} == {"open"}
    assert result[-1]["exit_at"] is None


def test_without_the_run_a_market_tells_what_its_actions_ask_for(serve, tmp_path):
    folder, _ = view_lakes.traded(tmp_path / "run", episodes=1)
    server = serve(folder / "lake")
    words = {"stream": 0, "first": 0, "last": 39}
    (folder / "market.json").unlink()
    result = ask(server, "episode", **words)["trades"]
    assert {t["symbol"] for t in result} == {None}
    assert {t["date"] for t in result} == {None}
    for wrong in ("{", '{"config": {"rules": {"context": 0}}}', '{"config": {"rules": 3}}', '{"config": []}'):
        (folder / "config.json").write_text(wrong)
        result = ask(server, "episode", **words)
        assert "trades" not in result
        assert result["entries"]


def test_leaves_of_a_dict_are_shown_one_by_one(shown):
    server = shown("vectors")
    result = ask(server, "spec")["observations"]
    assert [leaf["path"] for leaf in result] == ["obs['body']", "obs['goal'][0]", "obs['goal'][1]"]
    assert ask(server, "observation", stream=0, first=50, last=99, at=7, leaf=1)["numbers"] == [1.0, 57.0]
    assert ask(server, "observation", stream=0, first=50, last=99, at=7, leaf=2)["numbers"] == [57.0]


def test_distributions_count_every_step_of_a_small_lake(lakes, shown):
    server = shown("boards")
    with lp.Lake.open(lakes / "boards") as lake:
        batch = lake.steps(0, len(lake))
    result = ask(server, "distribution", column="action")
    assert result["steps"] == result["of"] == 2400
    assert result["parts"][0]["counts"] == np.bincount(batch.action).tolist()
    reward = ask(server, "distribution", column="reward")["parts"][0]
    assert dict(zip(reward["at"], reward["counts"], strict=True))[1.0] == int(batch.reward.sum())
    parts = ask(shown("market"), "distribution", column="action")["parts"]
    assert [part["name"] for part in parts] == ["[..., 0]", "[..., 1]"]
    assert sum(parts[1]["counts"]) == 1200 * 12
    assert 10 <= parts[1]["low"] <= parts[1]["high"] <= 50


def test_sharing_tells_who_uses_which_rows(lakes, shown):
    result = ask(shown("market"), "sharing")
    with lp.Lake.open(lakes / "market") as lake:
        batch, stats = lake.steps(0, len(lake)), lake.stats()
    assert (result["rows"], result["uses"]) == (stats.rows, 2 * 1200 * 120)
    rows = {stream: set() for stream in range(4)}
    for stream, obs, then in zip(batch.stream, batch.obs, batch.next_obs, strict=True):
        rows[int(stream)] |= {row.tobytes() for row in (*obs, then[-1])}
    assert result["overlap"] == [[len(rows[a] & rows[b]) for b in range(4)] for a in range(4)]
    by = [sum(row in mine for mine in rows.values()) for row in set().union(*rows.values())]
    assert [bar["rows"] for bar in result["shared"]] == [by.count(k) for k in range(1, 5)]
    assert sum(map(sum, result["uses_by_stream"])) == result["uses"]


def test_commits_and_files_are_those_of_the_lake(lakes, shown):
    server = shown("boards")
    result = ask(server, "commits")
    assert [c["number"] for c in result["commits"]] == [5, 4, 3, 2, 1, 0]
    assert [c["recorded"] for c in result["commits"]] == [2400, 2000, 1600, 1200, 800, 400]
    assert result["commits"][0]["note"] == {"frames": 2400}
    assert [c["number"] for c in ask(server, "commits", before=2)["commits"]] == [1, 0]
    with lp.Lake.open(lakes / "boards", commit=2) as lake:
        segments, rows = list(lake.reader.stored()), [file for _, file in lake.reader.row_files(0)]
    result = ask(server, "files", commit=2, kind="steps")
    assert [f["file"] for f in result["files"]] == [s.name for s in reversed(segments)]
    assert result["of"] == len(segments)
    (needed,) = segments[-1].segment.needs
    assert result["files"][0]["needs"] == sum(meets(needed, file.first, file.stop) for file in rows)
    result = ask(server, "files", commit=2, kind="rows")
    assert [f["file"] for f in result["files"]] == [file.name for file in reversed(rows)]
    assert result["of"] == len(rows)


def test_an_older_commit_shows_what_it_held(shown):
    server = shown("boards")
    assert finished(server, "streams", commit=1)["streams"][0]["steps"] == 200
    assert finished(server, "streams")["streams"][0]["steps"] == 600
    assert ask(server, "distribution", commit=1, column="reward")["of"] == 800


def test_verify_names_every_file_that_is_broken(lakes, serve, tmp_path):
    path = view_lakes.copy(lakes / "boards", tmp_path / "lake")
    with lp.Lake.open(path) as lake:
        broken = {list(lake.reader.stored())[2].name, list(lake.reader.row_files(0))[1][1].name}
    for name in broken:
        view_lakes.flip(path / "segments" / name, at=200)
    first, *lines = ask(serve(path), "verify")
    assert first["files"] == len(lines)
    assert lines[-1]["done"] == lines[-1]["of"] == first["of"]
    assert {line["file"] for line in lines if line["state"] == "broken"} == broken
    assert all(line["file"] in line["error"] for line in lines if line["error"])


def test_a_file_that_is_elsewhere_is_no_damage(lakes, serve, tmp_path):
    path = view_lakes.copy(lakes / "boards", tmp_path / "lake")
    with lp.Lake.open(path) as lake:
        _, away = next(lake.reader.row_files(0))
    Elsewhere(path, "gs://bucket/demo").add([away.name])
    (path / "segments" / away.name).unlink()
    server = serve(path)
    place = ask(server, "uploads")["places"][0]
    assert (place["place"], place["files"], place["only_there"]) == ("gs://bucket/demo", 1, 1)
    assert place["bytes"] == place["only_there_bytes"] == away.shard.bytes
    states = {line.get("file"): line.get("state") for line in ask(server, "verify")}
    assert states.pop(away.name) == "elsewhere"
    assert set(states.values()) == {None, "intact"}
    assert ask(server, "uploads")["last_push"] is None
    note = {"url": "gs://bucket/demo", "time": 1.7e9, "last_error": "no network"}
    (tmp_path / "upload.json").write_text(json.dumps(note))
    assert ask(server, "uploads")["last_push"]["error"] == "no network"
    code, why = refused(server, "pictures", stream=0, first=0, last=0)
    assert code == 409
    assert "gs://bucket/demo" in why


def test_a_lake_without_a_commit_says_so(lakes, shown):
    server = shown("empty")
    about = ask(server, "lake")
    assert (about["newest"], about["problems"]) == (None, [])
    assert refused(server, "spec") == (404, f"{lakes / 'empty'} has no commit yet.")


def test_a_broken_newest_commit_is_stepped_over_and_told(lakes, serve, tmp_path):
    path = view_lakes.copy(lakes / "boards", tmp_path / "lake")
    view_lakes.flip(path / "commits" / "0000000005.json")
    about = ask(serve(path), "lake")
    assert about["newest"]["number"] == 4
    assert [problem["number"] for problem in about["problems"]] == [5]


def test_a_broken_segment_is_told_where_it_is_needed(lakes, serve, tmp_path):
    path = view_lakes.copy(lakes / "boards", tmp_path / "lake")
    with lp.Lake.open(path) as lake:
        name = list(lake.reader.stored())[3].name
    (path / "segments" / name).write_bytes(b"\0" * (path / "segments" / name).stat().st_size)
    server = serve(path)
    for _ in range(100):
        result = ask(server, "episodes", limit=500)
        if result["progress"]["error"]:
            break
        time.sleep(0.05)
    assert name in result["progress"]["error"]
    assert result["progress"]["steps"] == 1200  # what comes before it is there
    assert result["of"] > 50


def test_a_running_writer_is_followed(serve, tmp_path):
    path = tmp_path / "lake"
    spec = lp.Spec(obs=lp.Field((2,), "float32"))
    with lp.Replay.open(path, spec, capacity=64, max_steps=64, keep_last=2) as replay:

        def record(count: int) -> None:
            for _ in range(count):
                record_one(replay, truncated=replay.stats().recorded % 10 == 9)
            replay.commit()

        record(20)
        server = serve(path)
        assert finished(server, "episodes")["of"] == 2
        record(15)
        result = finished(server, "episodes")
        assert [(e["first"], e["end"]) for e in result["episodes"]] == [
            (30, "open"),
            (20, "truncated"),
            (10, "truncated"),
            (0, "truncated"),
        ]
        assert result["progress"]["commit"] == 1
        for _ in range(8):  # the first steps leave, and the commits that were looked at
            record(15)
        result = finished(server, "episodes", order="newest", limit=1)
        assert result["episodes"][0]["last"] == 154
        assert refused(server, "spec", commit=0)[0] == 404
        assert len(lp.Lake.open(path)) == 64


def test_bad_questions_get_a_sentence(shown):
    server = shown("boards")
    for name, words, code, part in [
        ("episodes", {"order": "odd"}, 400, "order is one of"),
        ("episodes", {"stream": "x"}, 400, "stream is a whole number"),
        ("episode", {"stream": 0}, 400, "first is a whole number"),
        ("episode", {"stream": 9, "first": 0, "last": 5}, 400, "no step"),
        ("episode", {"stream": 0, "first": 9**30, "last": 5}, 400, "whole number"),
        ("pictures", {"stream": 0, "first": 0, "last": 8, "at": 99}, 400, "outside"),
        ("pictures", {"stream": 0, "first": 0, "last": 8, "leaf": 3}, 400, "observations"),
        ("distribution", {"column": "obs"}, 400, "no column"),
        ("files", {"kind": "../../etc"}, 400, "kind is one of"),
        ("spec", {"commit": 77}, 404, "no commit 77"),
    ]:
        got, why = refused(server, name, **words)
        assert got == code, (name, words, why)
        assert part in why


def test_many_may_ask_at_once(shown):
    server = shown("frames")
    wrong = []

    def look(k: int) -> None:
        try:
            for at in range(k, 150, 29):
                strip = ask(
                    server, "pictures", stream=k % 2, first=k % 2, last=299 - 1 + k % 2, at=at, count=1
                )
                assert unpack(strip).shape == (84, 84)
                ask(server, "episode", stream=k % 2, first=k % 2, last=299 - 1 + k % 2, commit=1 + k % 2)
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=look, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize(
    ("shape", "dtype", "axis", "kind"),
    [
        ((4, 84, 84), "uint8", 0, "frames"),
        ((3, 84, 84), "uint8", 0, "frames"),
        ((84, 84, 4), "uint8", -1, "frames"),
        ((210, 160, 3), "uint8", None, "picture"),
        ((84, 84), "uint8", None, "picture"),
        ((10, 10, 6), "float32", None, "channels"),
        ((504, 108, 9), "float32", 0, "window"),
        ((64, 5), "float64", 0, "window"),
        ((17,), "float32", None, "vector"),
        ((), "int64", None, "vector"),
        ((5,), "S4", None, "vector"),
    ],
)
def test_an_observation_is_shown_as_what_it_is(shape, dtype, axis, kind):
    assert kind_of(lp.Field(shape, dtype), axis).kind == kind


def test_a_png_has_the_pixels_it_was_given(rng):
    grey = rng.integers(0, 256, (7, 5), dtype=np.uint8)
    colour = rng.integers(0, 256, (3, 9, 3), dtype=np.uint8)
    np.testing.assert_array_equal(unpack(png(grey)), grey)
    np.testing.assert_array_equal(unpack(png(colour)), colour)


def test_a_commit_without_a_step_is_shown_as_such(serve, tmp_path):
    with lp.Replay.open(tmp_path / "lake", lp.Spec(obs=lp.Field((4, 84, 84), "uint8")), capacity=8) as replay:
        replay.commit({"nothing": "yet"})
    server = serve(tmp_path / "lake")
    assert finished(server, "episodes")["episodes"] == []
    assert finished(server, "streams")["streams"] == []
    assert ask(server, "distribution")["parts"] == []
    assert ask(server, "sharing")["kind"] == "empty"
    assert ask(server, "files")["files"] == []
    assert ask(server, "commits")["commits"][0]["note"] == {"nothing": "yet"}


def test_observations_that_never_repeat_share_no_row(serve, tmp_path, rng):
    spec = lp.Spec(obs=lp.Field((8, 12), "float32"))
    with lp.Replay.open(tmp_path / "lake", spec, capacity=4096) as replay:
        for _ in range(1500):
            record_one(replay, rng.random((8, 12), np.float32), next_obs=rng.random((8, 12), np.float32))
        replay.commit()
    server = serve(tmp_path / "lake")
    result = ask(server, "sharing")
    assert result["kind"] == "plain" or result["uses"] == result["rows"]
    strip = unpack(ask(server, "pictures", stream=0, first=0, last=9, count=10))
    assert strip.shape == (80, 12)


def test_rewards_that_are_no_numbers_stay_where_they_are(serve, tmp_path):
    with lp.Replay.open(tmp_path / "lake", lp.Spec(obs=lp.Field((2,), "float32")), capacity=64) as replay:
        for reward in (1.0, 5.0, 3.0):
            record_one(replay, reward=reward, terminated=True)
        record_one(replay, reward=float("nan"), terminated=True)
        with pytest.warns(RuntimeWarning, match="NaN"):
            replay.sample(1)
        replay.commit({"loss": float("nan")})
    server = serve(tmp_path / "lake")
    best = [e["total"] for e in finished(server, "episodes", order="best")["episodes"]]
    assert best == [5, 3, 1, None]
    part = ask(server, "distribution", column="reward")["parts"][0]
    assert (part["values"], part["not_finite"], part["high"]) == (4, 1, 5)
    assert ask(server, "commits")["commits"][0]["note"] == {"loss": "NaN"}
    assert json.loads(as_json({"loss": float("nan")})) == {"loss": None}  # as commits of format 1 have it
    assert ask(server, "episode", stream=0, first=3, last=3)["reward"] == [None]


def test_the_index_keeps_the_newest_episodes_within_its_bound(lakes, serve, monkeypatch):
    from lakepond.report.view import episodes

    monkeypatch.setattr(episodes, "MOST_EPISODES", 100)
    result = finished(serve(lakes / "boards"), "episodes", limit=500)
    known = plain_episodes(lakes / "boards")
    going = sum(e[5] == "open" for e in known)
    assert result["progress"]["dropped"] == len(known) - result["of"] > 0
    assert result["of"] - going <= 100
    newest = max(e[2] for e in known if e[5] != "open")
    assert newest in [e["last"] for e in result["episodes"]]


def test_a_compacted_lake_is_read_as_before(lakes, serve, tmp_path):
    path = view_lakes.copy(lakes / "boards", tmp_path / "lake")
    server = serve(path)
    before = finished(server, "episodes", limit=500, order="oldest")["episodes"]
    with lp.Lake.open(path) as lake:
        lake.compact()
    assert ask(server, "lake")["newest"]["number"] == 6
    assert finished(server, "episodes", limit=500, order="oldest")["episodes"] == before


def test_each_writer_of_a_lake_is_shown_on_disk_and_in_a_bucket(serve, tmp_path):
    url = f"file://{tmp_path}/bucket"
    path = view_lakes.writers(tmp_path / "lake", url)
    for place in (path, url):
        server = serve(place)
        about = ask(server, "lake")
        names = about["writers"]
        assert [name.partition(".")[0] for name in names] == ["left", "right"]
        assert (about["path"], about["writer"], about["newest"]["steps"]) == (str(place), names[0], 10)
        known = {each["name"]: each["newest"]["steps"] for each in ask(server, "writers")["writers"]}
        assert known == {names[0]: 10, names[1]: 20}
        for k, name in enumerate(names):
            assert ask(server, "lake", writer=name)["newest"]["recorded"] == 10 * (k + 1)
            commits = ask(server, "commits", writer=name)["commits"]
            assert [each["recorded"] for each in commits] == [[10, 5], [20, 15, 5]][k]
            found = finished(server, "episodes", writer=name, order="oldest")["episodes"]
            assert [each["total"] for each in found] == [
                sum(100.0 * k + t for t in range(5 * i, 5 * i + 5)) for i in range(2 * (k + 1))
            ]
            words = {"writer": name, "stream": 0, "first": 5, "last": 9}
            assert ask(server, "observation", **words, at=1)["numbers"][0] == 100 * k + 6
            assert ask(server, "episode", **words)["commit"] == k + 1
            assert ask(server, "distribution", writer=name)["commit"] == k + 1
            assert ask(server, "files", writer=name, kind="steps")["of"] >= 1
            assert ask(server, "uploads", writer=name)["commit"] == k + 1
        assert refused(server, "commits", writer="middle")[0] == 400
        assert refused(server, "files", writer=names[0], commit=7)[0] == 404
    uploads = ask(serve(path), "uploads", writer="right")["places"]
    complete = [place["place"] for place in uploads if place["files"] == place["files_of"]]
    assert [place.rpartition("/")[2].partition(".")[0] for place in complete] == ["right"]
    lines = ask(serve(url), "verify", writer=names[1])
    assert {line["state"] for line in lines[1:]} == {"intact"}
    assert lines[-1]["done"] == lines[-1]["of"] == lines[0]["of"]
