"""Takes the screenshots of docs/view.md and docs/report.md, from a few runs.

lakepond train erl --preset demo --out runs/erl-demo
lakepond train mixture --game breakout --env-steps 262144 --reset-every 65536 --out runs/mixture
lakepond train erl --preset demo --seed 0 --out runs/seed-0
(and the same with --seed 1 and 2)
python tests/report/screenshots.py docs/images --market runs/erl-demo --games runs/mixture --seeds runs/seed-*
"""

import argparse
import shutil
import tempfile
import time
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from conftest import FLAGS
from lakepond.report.page import write_report
from lakepond.report.view import ViewServer

COLOURS = 160
"""of a picture's palette: small files that look the same"""
WIDE = {"width": 1280, "height": 900}
NARROW = {"width": 390, "height": 800}


def shoot(
    browser: Browser, url: str, out: Path, *, width: int, height: int, scheme: str, to: str = ""
) -> None:
    """One window, twice as sharp on narrow screens; `to` is scrolled to first."""
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme=scheme,
        device_scale_factor=2 if width < 600 else 1,
    )
    page = context.new_page()
    page.goto(url)
    if url.startswith("http"):
        page.wait_for_selector("main[data-ready]")
    page.wait_for_timeout(900)  # curves and frames that come after the page
    if to:
        page.evaluate("to => document.querySelector(to).scrollIntoView()", to)
    page.screenshot(path=out)
    context.close()
    with Image.open(out) as picture:
        picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(out, optimize=True)


def episode(server: ViewServer) -> str:
    """The one with the highest return."""
    while not server.api.of({}).episodes({"order": "best", "limit": "1"})["progress"]["done"]:
        time.sleep(0.1)
    best = server.api.of({}).episodes({"order": "best", "limit": "1"})["episodes"][0]
    return f"stream={best['stream']}&first={best['first']}&last={best['last']}"


def draw_games(browser: Browser, run: Path, images: Path, folder: Path) -> None:
    """What a run on games looks like."""
    with ViewServer(run / "lake") as server:
        url = f"{server.url}#/training"
        shoot(browser, url, images / "view-training.png", **WIDE, scheme="dark")
        url = f"{server.url}#/episodes?order=best&{episode(server)}&at=70"
        shoot(browser, url, images / "view-episode.png", **WIDE, scheme="dark")
        shoot(browser, url, images / "view-narrow.png", **NARROW, scheme="light", to=".player")
    write_report([run], folder / "games.html")
    shoot(browser, (folder / "games.html").as_uri(), images / "report-mixture.png", **WIDE, scheme="dark")


def draw_market(browser: Browser, run: Path, images: Path, folder: Path) -> None:
    """What a run on a market looks like."""
    with ViewServer(run / "lake") as server:
        shoot(browser, server.url, images / "view-overview.png", **WIDE, scheme="light")
        url = f"{server.url}#/episodes?order=best&{episode(server)}&at=20"
        shoot(browser, url, images / "view-market.png", width=1280, height=1480, scheme="light")
        shoot(
            browser, f"{server.url}#/rows", images / "view-rows.png", width=1280, height=1150, scheme="dark"
        )
    write_report([run], folder / "one.html")
    one = (folder / "one.html").as_uri()
    shoot(browser, one, images / "report-market.png", **WIDE, scheme="light")
    shoot(browser, one, images / "report-narrow.png", **NARROW, scheme="light", to="#market")


def draw_seeds(browser: Browser, runs: list[Path], images: Path, folder: Path) -> None:
    """Runs that differ by their seed alone."""
    write_report(runs, folder / "seeds.html")
    url = (folder / "seeds.html").as_uri()
    shoot(browser, url, images / "report-seeds.png", **WIDE, scheme="light", to="#learning")


def main() -> None:
    """All of them, or those of the runs that are given."""
    parser = argparse.ArgumentParser()
    parser.add_argument("images", type=Path)
    parser.add_argument("--market", type=Path)
    parser.add_argument("--games", type=Path)
    parser.add_argument("--seeds", type=Path, nargs="+")
    asked = parser.parse_args()
    asked.images.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as play, tempfile.TemporaryDirectory() as folder:
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        if asked.games:
            draw_games(browser, asked.games, asked.images, Path(folder))
        if asked.market:
            draw_market(browser, asked.market, asked.images, Path(folder))
        if asked.seeds:
            draw_seeds(browser, asked.seeds, asked.images, Path(folder))
        browser.close()


if __name__ == "__main__":
    main()
