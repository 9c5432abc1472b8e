"""Draws the pictures of docs/view.md and docs/report.md from two runs.

lakepond train erl --preset demo --out runs/erl-demo && lakepond evaluate runs/erl-demo
lakepond train mixture --game breakout --frames 262144 --portion 65536 --out runs/mixture
python tests/report/screenshots.py runs/erl-demo runs/mixture docs/images
"""

import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from conftest import FLAGS
from lakepond.report.page import write_report
from lakepond.report.view import ViewServer

COLOURS = 160
"""of a picture's palette: small files that look the same"""


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
    if "/api" not in url and url.startswith("http"):
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
    best = server.api.episodes({"order": "best", "limit": "1"})["episodes"][0]
    return f"stream={best['stream']}&first={best['first']}&last={best['last']}"


def main(market: Path, games: Path, images: Path) -> None:
    """All of them."""
    images.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as play, tempfile.TemporaryDirectory() as folder:
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        wide = {"width": 1200, "height": 860}
        with ViewServer(games / "lake") as server:
            shoot(browser, server.url, images / "view-overview.png", **wide, scheme="light")
            url = f"{server.url}#/episodes?order=best&{episode(server)}&at=70"
            shoot(browser, url, images / "view-episode.png", **wide, scheme="dark")
            shoot(
                browser, url, images / "view-narrow.png", width=360, height=780, scheme="light", to=".player"
            )
        with ViewServer(market / "lake") as server:
            url = f"{server.url}#/episodes?order=best&{episode(server)}&at=59"
            shoot(browser, url, images / "view-market.png", **wide, scheme="light")
            shoot(browser, f"{server.url}#/rows", images / "view-rows.png", **wide, scheme="dark")
        write_report([market], Path(folder) / "one.html")
        write_report([games], Path(folder) / "games.html")
        one, other = ((Path(folder) / name).as_uri() for name in ("one.html", "games.html"))
        shoot(browser, one, images / "report-market.png", **wide, scheme="light")
        shoot(browser, other, images / "report-mixture.png", **wide, scheme="dark")
        shoot(browser, one, images / "report-narrow.png", width=360, height=780, scheme="light", to="#market")
        browser.close()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))
