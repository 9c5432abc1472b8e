"""The page of a comparison, from results made up so that the answer is known."""

import json

import numpy as np
import pytest

from lakepond.errors import RunNotFound
from lakepond.report.comparison import MARKER, figures, read, write


def made_up(folder, arm, game, seed, level, resets=()):
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
    }
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


def test_scores_are_told_over_those_of_the_best_arm_on_the_games_that_were_learned(comparison):
    for seed in range(4):
        made_up(comparison, "single", "Freeway", seed, 0.01)
        made_up(comparison, "mixture", "Freeway", seed, 0.2)
    made_up(comparison, "live", "Breakout", 0, 10.0)
    summary = figures(read(comparison))
    found = summary["arms"]
    assert found["single"]["iqm"] == [1.0, 1.0, 1.0]
    assert found["mixture"]["iqm"] == found["mixture"]["mean"] == [0.5, 0.5, 0.5]
    assert found["mixture"]["beats"] == [0.0, 0.0, 0.0]
    assert summary["left_out"] == ["Freeway"]  # nobody has learned it
    assert (found["live"]["runs"], found["live"]["iqm"][0]) == (1, 1.0)  # compared where it is
    assert np.isnan(found["live"]["iqm"][1])  # one seed has no interval


def test_differences_on_each_game_come_first_and_are_of_the_seeds_that_both_arms_have(comparison, tmp_path):
    for seed, level in enumerate((12.0, 14.0, 99.0)):
        made_up(comparison, "live", "Breakout", seed + (seed == 2) * 7, level)  # no other arm has seed 9
    arms = figures(read(comparison))["arms"]
    assert arms["live"]["differences"]["Breakout"][0] == 3.0
    low, high = arms["live"]["differences"]["Breakout"][1:]
    assert (low, high) == (2.0, 4.0)
    assert arms["mixture"]["differences"] == {"Asterix": [-1.0] * 3, "Breakout": [-5.0] * 3}
    write(comparison, tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text()
    assert "| live |  | 3.00 [2.00, 4.00] |" in text
    assert text.index("3.00 [2.00, 4.00]") < text.index("Scores: the mean over seeds") < text.index("IQM")


def test_without_single_the_others_are_compared_with_single_epochs(tmp_path):
    for seed in range(2):
        made_up(tmp_path, "mixture", "Breakout", seed, 6.0)
        made_up(tmp_path, "single-epochs", "Breakout", seed, 8.0)
    write(tmp_path, tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text()
    assert "Difference from `single-epochs`" in text
    assert "| mixture | -2.00 [-2.00, -2.00] |" in text
    assert "nan" not in text


def test_the_mean_of_all_games_is_not_the_interquartile_mean(comparison):
    for seed in range(4):
        made_up(comparison, "live", "Breakout", seed, 40.0)
        made_up(comparison, "live", "Asterix", seed, 0.0)
    arm = figures(read(comparison))["arms"]["live"]
    assert arm["mean"][0] == 0.5 == arm["iqm"][0]
    for seed in range(4):
        made_up(comparison, "single", "Freeway", seed, 10.0)
        made_up(comparison, "live", "Freeway", seed, 10.0)
    arm = figures(read(comparison))["arms"]["live"]
    assert arm["mean"][0] == pytest.approx(2 / 3)
    assert arm["iqm"][0] > arm["mean"][0]


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
