"""The page of a comparison, from results made up so that the answer is known."""

import json

import numpy as np
import pytest

from lakepond.errors import ConfigError, RunNotFound
from lakepond.report.comparison import MARKER, figures, read, write


def made_up(folder, arm, game, seed, level, resets=(), **more):
    curve = [(100 * (i + 1), level * (i + 1) / 10) for i in range(10)]
    result = {
        "arm": arm,
        "game": game,
        "seed": seed,
        "score": level,
        "curve": curve,
        "resets": list(resets),
        "frames": 1000,
        "samples": 2000,
        "seconds": {},
    } | more
    home = folder / game / arm / str(seed)
    home.mkdir(parents=True)
    (home / "result.json").write_text(json.dumps(result))


@pytest.fixture
def comparison(tmp_path):
    reset = {"frames": 500, "before": 4.0, "after": 5.0, "recovery": 0, "recovery_95": 0}
    late = {"frames": 500, "before": 4.0, "after": 1.0, "recovery": None, "recovery_95": 300}
    for seed in range(4):
        for game, scale in (("Breakout", 10.0), ("Asterix", 2.0)):
            made_up(tmp_path, "single", game, seed, scale)
            made_up(tmp_path, "mixture", game, seed, 0.5 * scale, [reset, late])
    return tmp_path


def test_scores_are_told_over_those_of_the_baseline_on_the_games_that_it_learned(comparison):
    for seed in range(4):
        made_up(comparison, "single", "Freeway", seed, 0.01)
        made_up(comparison, "mixture", "Freeway", seed, 0.2)
    made_up(comparison, "live", "Breakout", 0, 10.0)
    summary = figures(read(comparison))
    found = summary["arms"]
    assert found["single"]["iqm"] == [1.0, 1.0, 1.0]
    assert found["mixture"]["iqm"] == found["mixture"]["mean"] == [0.5, 0.5, 0.5]
    assert found["mixture"]["beats"] == [0.0, 0.0, 0.0]
    assert summary["left_out"] == ["Freeway"]  # `single` has not learned it
    assert (found["live"]["runs"], found["live"]["iqm"][0]) == (1, 1.0)  # compared where it is
    assert np.isnan(found["live"]["iqm"][1])  # one seed has no interval


def test_differences_on_each_game_come_first_and_are_of_the_seeds_that_both_arms_have(comparison, tmp_path):
    for seed, level in enumerate((12.0, 14.0, 99.0)):
        made_up(comparison, "live", "Breakout", seed + (seed == 2) * 7, level)  # no other arm has seed 9
    arms = figures(read(comparison))["arms"]
    value, low, high, _ = arms["live"]["score_differences"]["Breakout"]
    assert (value, low, high) == pytest.approx((3.0, 3 - 12.7062, 3 + 12.7062), abs=1e-3)  # 2 and 4
    assert arms["mixture"]["score_differences"]["Breakout"][:3] == [-5.0] * 3
    assert arms["mixture"]["curve_differences"]["Breakout"][:3] == pytest.approx([-2.75] * 3)
    write(comparison, tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text()
    assert "| live |  | 3.00 [-9.71, 15.71] |" in text
    assert "| mixture | -1.00 [-1.00, -1.00] † | -5.00 [-5.00, -5.00] † |" in text
    assert "correction for the 3 intervals" in text
    assert (
        text.index("3.00 [-9.71") < text.index("learning curve") < text.index("Scores: the mean over seeds")
    )


def test_a_difference_that_does_not_remain_after_holm_has_no_mark(tmp_path):
    for game, others in (("Breakout", (9.0, 11.0, 10.5)), ("Freeway", (21.0, 21.2, 21.1))):
        for seed, level in enumerate(others):
            made_up(tmp_path, "single", game, seed, 5.0)
            made_up(tmp_path, "live", game, seed, level)
            made_up(tmp_path, "mixture", game, seed, 5.0 + 0.1 * seed)
    found = figures(read(tmp_path))["arms"]["live"]["score_differences"]
    assert found["Breakout"][1] > 0
    assert [found[game][3] for game in ("Breakout", "Freeway")] == [True, True]
    for seed, level in enumerate((7.5, 9.5, 7.7)):  # p = 0.037, of five: 0.05 / 3 is its level
        made_up(tmp_path, "apart", "Breakout", seed, level)
    found = figures(read(tmp_path))["arms"]["apart"]["score_differences"]["Breakout"]
    assert found[1] > 0
    assert not found[3]


def test_the_baseline_can_be_chosen_and_cpu_seconds_are_those_of_runs_in_one_piece(comparison, tmp_path):
    made_up(comparison, "live", "Breakout", 0, 10.0, seconds={"cpu": 100.0})
    made_up(comparison, "live", "Breakout", 1, 10.0, seconds={})
    summary = write(comparison, tmp_path / "page.md", "mixture")
    assert summary["arms"]["single"]["score_differences"]["Breakout"][:3] == [5.0] * 3
    assert summary["arms"]["single"]["iqm"][0] == 2.0
    text = (tmp_path / "page.md").read_text()
    assert "--baseline mixture" in text
    assert text.count("| 100 |") == 1
    with pytest.raises(ConfigError, match="'apart' has no finished run; choose from single, mixture, live"):
        figures(read(comparison), "apart")


def test_the_others_are_compared_with_single_epochs_if_it_has_runs(tmp_path):
    for seed in range(2):
        made_up(tmp_path, "mixture", "Breakout", seed, 6.0)
        made_up(tmp_path, "single-epochs", "Breakout", seed, 8.0)
        made_up(tmp_path, "single", "Breakout", seed, 3.0)
    write(tmp_path, tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text()
    assert "Difference of the score from `single-epochs`" in text
    assert "| mixture | -2.00 [-2.00, -2.00] † |" in text
    assert "nan" not in text


def test_the_mean_of_all_games_is_not_the_interquartile_mean(comparison):
    for seed in range(4):
        made_up(comparison, "live", "Breakout", seed, 40.0)
        made_up(comparison, "live", "Asterix", seed, 0.0)
    arm = figures(read(comparison))["arms"]["live"]
    assert arm["mean"][0] == 2.0 == arm["iqm"][0]
    for seed in range(4):
        made_up(comparison, "single", "Freeway", seed, 10.0)
        made_up(comparison, "live", "Freeway", seed, 10.0)
    arm = figures(read(comparison))["arms"]["live"]
    assert arm["mean"][0] == pytest.approx(5 / 3)
    assert arm["iqm"][0] < arm["mean"][0]


def test_the_page_tells_all_and_keeps_what_was_written_by_hand(comparison, tmp_path):
    page = tmp_path / "docs" / "page.md"
    write(comparison, page)
    assert "| mixture | 1.0 [1.0, 1.0] | 5.0 [5.0, 5.0] |" in page.read_text()
    assert "| mixture | 16 | 50 % | 50 % | 50 % |" in page.read_text()
    for picture in ("curves", "scores", "recovery"):
        assert (page.parent / "page" / f"{picture}.png").read_bytes()[:4] == b"\x89PNG"
    page.write_text("# By hand\n\nSo it was.\n\n" + MARKER + "\nold")
    write(comparison, page)
    assert page.read_text().startswith("# By hand\n\nSo it was.\n\n" + MARKER)
    assert "old" not in page.read_text().partition(MARKER)[2].split("\n")


def test_a_recovery_by_the_next_evaluation_is_not_one_at_once(tmp_path):
    reset = {"frames": 450, "before": 4.0, "after": 3.0, "recovery": 50, "recovery_95": 50}
    made_up(tmp_path, "mixture", "Breakout", 0, 5.0, [reset, reset | {"recovery": 150}])
    write(tmp_path, tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text()
    assert "| at once | by the next evaluation | not before the end |" in text
    assert "| mixture | 2 | 0 % | 50 % | 0 % | 10 % |" in text


def test_recovery_is_reported_beside_that_of_agents_that_learn_nothing_at_a_reset(comparison):
    page = comparison / "page.md"
    write(comparison, page)
    assert "no runs of `clone-best`" in page.read_text()
    reset = {"frames": 500, "before": 4.0, "after": 5.0, "recovery": 0, "recovery_95": 0}
    late = reset | {"after": 1.0, "recovery": None}
    made_up(comparison, "clone-best", "Breakout", 0, 5.0, [reset, late])  # as `mixture`
    made_up(comparison, "clone-best", "Breakout", 1, 5.0, [late, late])  # 50 % less
    made_up(comparison, "clone-best", "Breakout", 9, 5.0, [reset, reset])  # no other run has this seed
    write(comparison, page)
    t = 12.706  # of one degree of freedom; the standard error of 0 and 50 is 25
    assert f"| mixture | 16 | 50 % | 25 [{25 - t * 25:.0f}, {25 + t * 25:.0f}] | 50 % |" in page.read_text()
    assert "| clone-best | 6 | 50 % |  | 50 % |" in page.read_text()


def test_nothing_to_report_is_told(tmp_path):
    with pytest.raises(RunNotFound, match="no finished run"):
        read(tmp_path)


def test_a_video_shows_boards_in_colours_and_the_newest_frame_of_stacks(tmp_path):
    from PIL import Image

    from lakepond.report.video import save_gif

    board = np.zeros((10, 10, 4), np.uint8)
    board[0, 0, 1] = board[5, 5, 3] = 1
    stack = np.zeros((4, 84, 84), np.uint8)
    stack[-1, 10:20] = 200
    for first, side in ((board, 240), (stack, 252)):
        path = save_gif(np.stack([first, np.roll(first, 1, axis=-2)]), tmp_path / "out.gif")
        with Image.open(path) as image:
            assert image.n_frames == 2
            assert image.size == (side, side)
            pixels = np.asarray(image.convert("RGB"))
        shown = {tuple(pixel) for pixel in pixels.reshape(-1, 3).tolist()}
        assert len(shown) == (3 if first is board else 2)  # a colour each channel, and the background
    assert (pixels[30:60] == 200).all()
