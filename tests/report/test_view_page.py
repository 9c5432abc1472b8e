"""The page of `view` in a real browser: keyboard, light and dark, wide and narrow, intact and damaged."""

import base64
import json
import time

import numpy as np
import pytest
import report_runs
import view_lakes

import lakepond as lp


def ready(page, name: str):
    page.wait_for_selector(f"main[data-ready='{name}']")
    return page


def until(page, script: str, arg=None) -> None:
    """Wait for a condition; the page's own policy forbids the browser to do that by itself."""
    for _ in range(300):
        if page.evaluate(script, arg):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"never came true: {script}")


def look(page) -> None:
    """Let the page ask for news now, as it does when its tab is shown again; it does every 2.5 s anyway."""
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")


def no_sideways(page) -> bool:
    return page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


PAGES = ["overview", "episodes", "values", "rows", "files"]  # of a lake; a run has `training` as well


@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (360, "dark")])
@pytest.mark.parametrize("name", ["boards", "market"])
def test_every_page_fits_the_screen_without_a_complaint_and_names_its_controls(
    shown, visit, name, width, scheme
):
    server = shown(name)
    page = visit(server.url, width=width, scheme=scheme)
    for each in PAGES:
        page.click(f"#nav a[href^='#/{each}']")
        ready(page, each)
        assert no_sideways(page), f"{each} is wider than the screen"
        assert page.get_attribute("#nav a[aria-current=page]", "href").startswith(f"#/{each}")
        assert page.locator("h1").count() == 1
        nameless = page.evaluate(
            """() => [...document.querySelectorAll('button, select, input, .plot, figure, .screen canvas')]
            .filter(e => !(e.getAttribute('aria-label') || e.innerText || (e.labels && e.labels.length)))
            .map(e => e.outerHTML)"""
        )
        assert nameless == []


def test_a_picture_that_has_not_arrived_has_a_name(shown, visit):
    page = visit(shown("boards").url)
    page.route("**/pictures*", lambda route: None)  # never answered
    page.click("#nav a[href^='#/episodes']")
    page.wait_for_selector(".screen canvas")
    assert page.get_attribute(".screen canvas", "aria-label") == "Observation, not loaded yet"


def test_the_overview_has_the_figures_of_the_lake(lakes, shown, visit):
    page = ready(visit(shown("boards").url), "overview")
    page.wait_for_selector("[data-done='true']")
    text = page.inner_text("main")
    with lp.Lake.open(lakes / "boards") as lake:
        stats = lake.stats()
    assert "2,400" in text
    assert f"{stats.rows:,}" in text
    assert "frames 2400" in text
    assert page.locator("table[aria-label='Streams'] tbody tr").count() == 4
    page.wait_for_selector("figure[data-commits='6'] .u-over")
    assert not page.locator("#nav a[href^='#/training']").is_visible()  # it is not part of a run


def test_commits_that_take_long_to_read_come_later(lakes, serve, visit, monkeypatch):
    from lakepond.report.view import api

    monkeypatch.setattr(api, "COMMIT_SECONDS", 0.0)  # one an answer
    server = serve(lakes / "boards")
    assert [c["number"] for c in server.api.of({}).commits({})["commits"]] == [5]
    page = ready(visit(server.url), "overview")
    page.wait_for_selector("figure[data-commits='6']")
    assert page.locator("table[aria-label^='Commits'] tbody tr").count() == 6


def test_a_commit_of_the_time_line_is_gone_to(shown, visit):
    page = ready(visit(shown("boards").url), "overview")
    page.click("table[aria-label^='Commits'] a >> text='2'")
    until(page, "location.hash.includes('commit=2')")
    until(page, "document.querySelector('#commit').value === '2'")
    until(page, "document.querySelector('.facts')?.innerText.includes('1,200')")
    page.focus("#commit")
    page.wait_for_selector("#commit option[value='3']", state="attached")
    page.select_option("#commit", "")
    until(page, "!location.hash.includes('commit')")


def test_a_stream_leads_to_its_own_episodes(shown, visit):
    page = ready(visit(shown("boards").url), "overview")
    page.click("table[aria-label='Streams'] a >> text='2'")
    ready(page, "episodes")
    streams = page.locator("table[aria-label='Episodes'] tbody td:first-child").all_inner_texts()
    assert set(streams) == {"2"}
    assert page.input_value("#stream") == "2"


def frame_on_screen(page, side: int) -> np.ndarray:
    """The picture that is shown, a pixel of it for each of the frame's."""
    shown = page.evaluate(
        """side => { const c = document.createElement('canvas'); c.width = c.height = side;
        const pen = c.getContext('2d', { willReadFrequently: true }); pen.imageSmoothingEnabled = false;
        pen.drawImage(document.querySelector('.screen canvas'), 0, 0, side, side);
        const grey = pen.getImageData(0, 0, side, side).data.filter((_, i) => i % 4 === 0);
        return btoa(String.fromCharCode(...grey)) }""",
        side,
    )
    return np.frombuffer(base64.b64decode(shown), np.uint8).reshape(side, side)


def shown_at(page, at: int) -> None:
    page.wait_for_selector(f".screen canvas[data-at='{at}']")


def test_an_episode_is_scrubbed_through_by_keyboard_alone(lakes, shown, visit):
    server = shown("frames")
    page = ready(visit(f"{server.url}#/episodes?stream=1&first=301&last=599"), "episodes")
    shown_at(page, 0)
    with lp.Lake.open(lakes / "frames") as lake:
        batch = lake.steps(301, 600)
    frames = batch.obs[batch.stream == 1][:, -1]

    def same_as(frame) -> bool:
        return np.array_equal(frame_on_screen(page, 84), frame)

    assert same_as(frames[0])
    for key, at in [
        ("ArrowRight", 1),
        ("ArrowRight", 2),
        ("ArrowLeft", 1),
        ("PageDown", 11),
        ("End", 149),
        ("PageUp", 139),
        ("Home", 0),
    ]:
        page.keyboard.press(key)
        shown_at(page, at)
        assert same_as(frames[at])
    page.focus("#scrub")
    page.keyboard.press("ArrowRight")
    shown_at(page, 1)
    assert page.get_attribute("#scrub", "aria-valuetext") == "step 2 of 150"
    until(page, "location.hash.includes('at=1')")


def test_play_goes_on_by_itself_and_stops_at_the_end(shown, visit):
    page = ready(visit(f"{shown('boards').url}#/episodes?order=longest"), "episodes")
    shown_at(page, 0)
    steps = int(page.inner_text(".transport output").rsplit(" ", 1)[1])
    page.select_option("#speed", "60")
    page.keyboard.press("Tab")  # off the list, where a space would open it
    for key, at in (("End", steps - 1), ("PageUp", steps - 11), ("PageUp", steps - 21)):
        page.keyboard.press(key)
        shown_at(page, at)
    page.click("button[aria-label='Play']")
    shown_at(page, steps - 1)
    page.wait_for_selector("button[aria-label='Play']")


def test_brackets_go_to_the_next_and_the_previous_episode(lakes, serve, shown, visit):
    page = ready(visit(f"{serve(lakes / 'boards').url}#/episodes?order=oldest"), "episodes")
    first = page.inner_text(".player h2")
    page.keyboard.press("]")
    until(page, "first => document.querySelector('.player h2').innerText !== first", arg=first)
    page.keyboard.press("[")
    until(page, "first => document.querySelector('.player h2').innerText === first", arg=first)


def test_everything_can_be_reached_by_tab_and_shows_where_one_is(lakes, serve, shown, visit):
    page = ready(visit(f"{serve(lakes / 'boards').url}#/episodes"), "episodes")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    seen = set()
    for _ in range(80):
        page.keyboard.press("Tab")
        where = page.evaluate(
            """() => { const e = document.activeElement;
            const name = e.tagName + (e.id ? '#' + e.id : '') + (e.getAttribute('aria-label') ?? '');
            return [name, getComputedStyle(e).outlineStyle] }"""
        )
        if where[0].startswith("BODY"):
            break
        seen.add(where[0])
        assert where[1] != "none", f"{where[0]} shows no focus"
    assert {"SELECT#stream", "SELECT#order", "INPUT#scrubStep of the episode", "BUTTONPlay"} <= seen


def test_a_market_shows_its_window_and_where_it_bought(shown, visit):
    server = shown("market")
    page = ready(visit(f"{server.url}#/episodes?stream=3&first=3&last=239&at=59"), "episodes")
    page.wait_for_selector("figure[data-entries] .u-over")
    entries = page.locator("table[aria-label='Entries'] tbody tr")
    before = entries.count()
    assert int(page.get_attribute("figure[data-entries]", "data-entries")) >= 1
    assert "this lake has no prices" in page.inner_text("figure[data-entries]")
    page.fill("#threshold", "1.1")
    page.keyboard.press("Tab")
    until(
        page,
        "n => document.querySelectorAll(\"table[aria-label='Entries'] tbody tr\").length < n",
        arg=before,
    )
    page.fill("#threshold", "99")
    page.keyboard.press("Tab")
    page.wait_for_selector("text=No action reaches the threshold.")
    values = "document.querySelector('figure[data-entries]')?.chart?.plot?.data[1]"
    until(page, f"{values} !== undefined")  # the figure is drawn again
    before = page.evaluate(values)
    page.select_option("#instrument", "7")
    until(page, f"d => JSON.stringify({values}) !== JSON.stringify(d)", arg=before)


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (360, "dark")])
def test_a_run_on_a_market_shows_its_trades_with_symbols_exits_and_returns(
    serve, visit, tmp_path, width, scheme
):
    folder, (trades,) = view_lakes.traded(tmp_path / "run", episodes=1)
    server = serve(folder / "lake")
    page = ready(visit(f"{server.url}#/episodes", width=width, scheme=scheme), "episodes")
    page.wait_for_selector("figure[data-entries] .u-over")
    assert page.input_value("#scrub") == str(trades[0].entry_day - 60)  # it opens at the first trade
    assert page.input_value("#instrument") == str(trades[0].instrument)
    assert no_sideways(page)
    assert page.evaluate("document.querySelector('main').scrollWidth <= window.innerWidth")
    rows = page.locator("table[aria-label='Trades'] tbody tr")
    assert rows.count() == len(trades)
    assert page.locator("#threshold").count() == 0
    for i, trade in enumerate(trades):
        cells = rows.nth(i).locator("td").all_inner_texts()
        sign = "+" if trade.profit >= 0 else "−"
        assert cells[:2] == [f"SYN{trade.instrument:03d}", f"{sign}{abs(trade.profit):.1f} %"]
    closed = next(i for i, trade in enumerate(trades) if 12 < trade.exit_day - 60 < 38)
    rows.nth(closed).locator("td").nth(3).locator("a").click()  # to the day of its exit
    at = trades[closed].exit_day - 60
    until(page, "at => document.querySelector('#scrub').value === String(at)", arg=at)
    column = trades[closed].instrument
    assert page.input_value("#instrument") == str(column)
    assert page.locator("#instrument option:checked").inner_text() == f"SYN{column:03d}"
    here = [t for t in trades if t.instrument == column]
    figure = page.locator("figure[data-entries]")
    until(
        page,
        "name => document.querySelector('figure[data-entries] h3').innerText === name",
        arg=f"Price of SYN{column:03d}",
    )
    assert figure.get_attribute("data-entries") == str(len(here))
    assert figure.get_attribute("data-exits") == str(sum(t.exit_day - 60 < 40 for t in here))
    names = json.loads((folder / "market.json").read_text())
    dates, close = figure.evaluate("f => f.chart.plot.data")  # from 60 days before to the end of settlement
    assert [str(np.datetime64(int(t), "s").astype("datetime64[D]")) for t in dates] == names["dates"][:110]
    assert close == names["close"][column][:110]


def test_a_run_without_prices_shows_its_window_as_recorded(serve, visit, tmp_path):
    folder, _ = view_lakes.traded(tmp_path / "run", episodes=1)
    names = json.loads((folder / "market.json").read_text())
    (folder / "market.json").write_text(json.dumps({k: names[k] for k in ("symbols", "dates")}))
    page = ready(visit(f"{serve(folder / 'lake').url}#/episodes"), "episodes")
    page.wait_for_selector("text=as recorded (normalised); this lake has no prices")
    assert page.locator("table[aria-label='Trades'] tbody tr").count() > 0


def test_a_training_is_watched_live(serve, visit, tmp_path):
    """New log lines and commits appear without a reload, and the curves keep their zoom."""
    folder = report_runs.erl(tmp_path / "run", generations=3)
    server = serve(folder / "lake")
    page = ready(visit(server.url), "overview")
    fitness = page.locator("figure[aria-label='Fitness of the population']")
    page.wait_for_selector("figure[aria-label='Fitness of the population'] .u-over")
    points = "f => f.chart.plot.data[0].length"
    assert fitness.evaluate(points) == 3
    page.wait_for_selector("figure[data-commits='3']")
    assert "erl, not running" in page.inner_text(".state")
    fitness.evaluate("f => f.chart.plot.setScale('x', { min: 1, max: 2 })")
    with (folder / "metrics.jsonl").open("a") as log:
        log.write(json.dumps({"step": 4, "time": time.time(), "fitness_best": 44.0}) + "\n")
    with lp.Replay.open(folder / "lake", capacity=512) as replay:
        row = np.zeros(4, np.float32)
        replay.record(obs=row, action=0, reward=1.0, next_obs=row, terminated=False, truncated=False)
        replay.commit()
    page.wait_for_selector("figure[data-commits='4']")
    until(page, f"() => ({points})(document.querySelector('figure')) === 4")
    assert fitness.evaluate("f => f.chart.plot.scales.x.max") == 2
    page.click("#nav a[href^='#/training']")
    ready(page, "training")
    assert page.locator("figure").count() == 5
    assert "Best agent: 44 at the end" in page.inner_text("main")


def test_the_token_leaves_the_address_bar_and_a_reload_works(shown, visit):
    server = shown("boards")
    page = ready(visit(f"{server.url}#/files"), "files")
    assert page.url == f"{server.address}#/files"
    page.reload()
    ready(page, "files")
    assert page.context.request.get(server.address).status == 200
    page.context.clear_cookies()
    assert page.context.request.get(server.address).status == 401


def test_checking_every_byte_shows_what_is_broken(lakes, serve, visit, tmp_path):
    path = view_lakes.copy(lakes / "boards", tmp_path / "lake")
    with lp.Lake.open(path) as lake:
        name, files = next(lake.reader.row_files(0))[1].name, lake.stats().files
    view_lakes.flip(path / "segments" / name, at=100)
    page = ready(visit(f"{serve(path).url}#/files"), "files")
    page.click("text=Verify checksums")
    page.wait_for_selector(f"text=1 of {files} files are broken")
    assert page.locator("td .bad").count() == 1
    assert page.locator("td .good").count() == files - 1
    assert name in page.inner_text(".note.bad")


def test_an_empty_lake_waits_for_its_first_commit(serve, visit, tmp_path):
    spec = lp.Spec(obs=lp.Field((2,), "float32"))
    with lp.Replay.open(tmp_path / "lake", spec, capacity=8) as replay:
        page = ready(visit(serve(tmp_path / "lake").url, width=360), "overview")
        assert page.inner_text("h1") == "This lake is empty"
        zero = np.zeros(2, np.float32)
        for _ in range(2):
            replay.record(obs=zero, action=0, reward=1.0, next_obs=zero, terminated=False, truncated=False)
        replay.commit()
        look(page)
        page.wait_for_selector("text=Smaller by")
        page.click("#nav a[href^='#/values']")
        ready(page, "values")
        replay.record(obs=zero, action=0, reward=1.0, next_obs=zero, terminated=True, truncated=False)
        replay.commit()
        look(page)
        page.wait_for_selector("text=New commit 1 with 1 more steps.")
        page.click("text=Show it")
        until(page, "document.querySelector('#commit').innerText.includes('1 (newest)')")


def test_a_broken_lake_is_told_and_the_rest_is_shown(lakes, serve, visit, tmp_path):
    path = view_lakes.copy(lakes / "boards", tmp_path / "lake")
    view_lakes.flip(path / "commits" / "0000000005.json")
    page = ready(visit(serve(path).url), "overview")
    assert "0000000005.json is damaged" in page.inner_text("#notice")
    assert "commit 4, the newest that is intact" in page.inner_text("#notice")
    for number in range(5):
        view_lakes.flip(path / "commits" / f"000000000{number}.json")
    page = ready(visit(serve(path).url), "overview")
    assert page.inner_text("h1") == "No commit of this lake is intact"
    assert "lakepond repair" in page.inner_text("main")


def test_a_commit_that_is_gone_leads_to_the_newest(shown, visit):
    server = shown("boards")
    page = ready(visit(f"{server.url}#/overview?commit=2"), "overview")
    page.evaluate("location.hash = '#/overview?commit=99'")
    page.wait_for_selector("text=This page cannot be shown")
    page.complaints.clear()  # the browser itself notes a 404
    page.click("text=Go to the newest commit")
    page.wait_for_selector("text=Smaller by")
    page.complaints.clear()


def test_one_writer_of_several_is_chosen_and_kept_from_page_to_page(serve, visit, tmp_path):
    url = f"file://{tmp_path}/bucket"
    view_lakes.writers(tmp_path / "lake", url)
    page = ready(visit(serve(url).url), "overview")
    page.wait_for_selector("table[aria-label='Writers'] tbody tr")
    assert "2 writers, together 30 steps" in page.inner_text("main")
    (right,) = [n for n in page.locator("#writer option").all_inner_texts() if n.startswith("right.")]
    page.select_option("#writer", right)
    until(page, "() => document.querySelectorAll('table[aria-label^=Commits] tbody tr').length === 3")
    assert f"writer={right}" in page.url
    page.click("table[aria-label='Streams'] a >> text='0'")
    ready(page, "episodes")
    until(page, "() => document.querySelectorAll('table[aria-label=Episodes] tbody tr').length === 4")
    page.click("#nav a >> text=Files")
    ready(page, "files")
    assert page.input_value("#writer") == right
    page.click("text=Verify checksums")
    page.wait_for_selector("text=files are intact")
    assert no_sideways(page)
