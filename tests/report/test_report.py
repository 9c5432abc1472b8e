"""`report`: what is read from a run, what is drawn, and the page in a browser."""

import base64
import hashlib
import json
import re
import time
from importlib import resources
from pathlib import Path

import pytest
import report_runs

import lakepond as lp
from lakepond.cli import main
from lakepond.formats import duration, number, percent, short, size
from lakepond.lake.elsewhere import Elsewhere
from lakepond.report.captions import caption
from lakepond.report.chart import Chart, Line, as_json, histogram, mean_line, spike_limit
from lakepond.report.figures import figures
from lakepond.report.gathered import gather
from lakepond.report.page import render, write_report


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    report_runs.evaluated(report_runs.erl(folder / "erl-1"))
    report_runs.erl(folder / "erl-2", seed=1, generations=4, name="another")
    report_runs.mixture(folder / "mixture")
    report_runs.empty(folder / "empty")
    return folder


@pytest.fixture(scope="module")
def page_of_one(runs) -> Path:
    """The report of one run, for the tests that only look at it."""
    return write_report([runs / "erl-1"], runs / "one.html")[0]


def chart_of(found, key: str):
    return next(one for group in found.values() for one in group if one.key == key)


def test_a_run_is_read_as_it_was_logged(runs):
    run = gather(runs / "erl-1")
    assert (run.name, run.trainer, run.x_name) == ("erl-1", "erl", "generation")
    assert list(run.metrics["fitness_best"].y) == [10, 20, 30, 40, 50, 60]
    assert "note" not in run.metrics
    assert [commit["steps"] for commit in run.growth] == [20, 40, 60, 80, 100, 120]
    assert len(run.checkpoints) == 1
    assert run.problems == []
    assert run.evaluations[0].equity["champion"][-1] == 1.09


def test_resets_tell_how_soon_the_level_before_was_reached_again(runs):
    resets = gather(runs / "mixture").resets
    assert [(r.step, r.before, r.after, r.recovered) for r in resets] == [
        (10_000, 10, 7, 3_000),
        (20_000, 20, 17, 3_000),
        (30_000, 30, 27, 3_000),
        (40_000, 40, 37, None),
    ]


def test_one_run_has_its_curves_together_with_its_spread_and_resets(runs):
    found = figures([gather(runs / "erl-1")])
    fitness = chart_of(found, "fitness")
    assert [one.name for one in fitness.lines] == ["best agent", "mean", "champion, validation days"]
    mean = fitness.lines[1]
    assert mean.low == [4 * g for g in range(1, 7)]
    assert mean.high == [6 * g for g in range(1, 7)]
    assert chart_of(found, "bytes").log
    assert chart_of(found, "equity-holdout").lines[0].y[-1] == pytest.approx(9.0)
    assert sum(chart_of(found, "profits-holdout").bars[1]) == 3
    assert chart_of(found, "surprise/of <mine>").title == "Surprise/of <mine>"
    evaluation = chart_of(figures([gather(runs / "mixture")]), "evaluation")
    assert evaluation.marks == (10_000, 20_000, 30_000, 40_000)
    assert sum(one.thin for one in evaluation.lines) == 2


def test_several_runs_share_a_chart_for_each_metric(runs):
    found = figures([gather(runs / name) for name in ("erl-1", "erl-2", "mixture")])
    best = chart_of(found, "fitness-fitness_best-generation")
    assert [(one.name, one.colour) for one in best.lines] == [("erl-1", 0), ("erl-2", 1)]
    assert list(best.lines[1].y) == [11, 21, 31, 41]
    evaluation = chart_of(found, "evaluation-evaluation-steps")  # another axis, another chart
    assert [(one.name, one.colour) for one in evaluation.lines] == [("mixture", 2)]


def charts_in(page: Path) -> list:
    """The data of the charts of a page."""
    text = page.read_text()
    return json.loads(re.search(r'id="charts">(.*?)</script>', text)[1])


def test_runs_that_differ_by_their_seed_alone_are_averaged_with_their_range(runs, tmp_path):
    for seed in (0, 1, 5):
        report_runs.evaluated(
            report_runs.erl(tmp_path / f"mine-s{seed}", seed=seed, generations=6 - seed // 5)
        )
    folders = [tmp_path / "mine-s0", runs / "erl-2", tmp_path / "mine-s1", tmp_path / "mine-s5"]
    found = figures([gather(folder) for folder in folders])
    best = chart_of(found, "fitness-fitness_best-generation")
    assert [(one.name, one.colour) for one in best.lines] == [("mine, 3 seeds", 0), ("erl-2", 1)]
    mean = best.lines[0]
    assert mean.x == [1, 2, 3, 4, 5]  # as far as all three have come
    assert mean.y == pytest.approx([10 * g + 2 for g in range(1, 6)])
    assert mean.low == [10 * g for g in range(1, 6)]
    assert mean.high == [10 * g + 5 for g in range(1, 6)]
    assert "the band is their range" in best.note
    assert best.lines[1].low is None
    equity = chart_of(found, "equity-holdout")
    assert [one.name for one in equity.lines] == ["mine, 3 seeds", "buy and hold"]
    assert sum(chart_of(found, "profits-holdout-mine, 3 seeds").bars[1]) == 9
    (page,) = write_report(folders, tmp_path / "report.html")
    assert sum("low" in one for chart in charts_in(page) for one in chart.get("lines", ())) > 4


def test_the_same_run_twice_and_other_settings_are_no_seeds(runs, tmp_path):
    folders = [report_runs.erl(tmp_path / name, generations=2) for name in ("a", "b")]
    found = figures([gather(folder) for folder in [*folders, runs / "erl-2"]])
    best = chart_of(found, "fitness-fitness_best-generation")
    assert [one.name for one in best.lines] == ["a", "b", "erl-2"]
    assert best.note == ""


def test_seeds_that_were_logged_at_other_steps_meet_in_between():
    drawn = mean_line("m", [([0, 10, 20], [0.0, 10.0, 20.0]), ([15, 40], [25.0, 0.0])], 0)
    assert drawn.x == [15, 20]
    assert drawn.y == [20.0, 20.0]
    assert drawn.low == [15.0, 20.0]
    long = [(range(k, 100_000), [float(k)] * (100_000 - k)) for k in (0, 1)]
    drawn = mean_line("m", long, 0)
    assert len(drawn.x) <= 600
    assert set(drawn.y) == {0.5}


def test_the_page_needs_nothing_else_and_runs_no_script_but_its_own(page_of_one):
    text = page_of_one.read_text()
    assert not re.search(r"(src|href)=[\"'](?!#)", text)
    assert not re.search(r"@import|url\(|^import ", text, re.MULTILINE)
    assert "&lt;b&gt;bold&lt;/b&gt;" in text  # what a setting says is text, not markup
    assert "<b>" not in text
    assert "Surprise/of &lt;mine&gt;" in text
    assert "Copyright (c) 2022 Leon Sorokin" in text  # the licence of uPlot goes with it
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1]
    scripts = re.findall(r"<script(?: type=\"module\")?>(.*?)</script>", text, re.DOTALL)
    hashes = [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in scripts]
    allowed = " ".join(f"'sha256-{one}'" for one in hashes)
    assert len(hashes) == 2
    assert policy == f"default-src 'none'; style-src 'unsafe-inline'; script-src {allowed}"
    assert page_of_one.stat().st_size < 400_000


def test_uplot_is_the_version_that_is_named_with_its_licence():
    folder = resources.files("lakepond.report").joinpath("static", "uplot")
    version = re.search(r"uPlot ([\d.]+)", folder.joinpath("README.md").read_text())[1]
    assert f"(v{version})" in folder.joinpath("uPlot.iife.min.js").read_text()[:100]
    assert "MIT License" in folder.joinpath("LICENSE").read_text()


def test_every_figure_is_also_a_file(runs, tmp_path):
    _, *files = write_report([runs / "erl-1"], tmp_path / "a" / "r.html", pictures=tmp_path / "figures")
    drawn = figures([gather(runs / "erl-1")])
    assert len(files) == 2 * sum(map(len, drawn.values()))
    for file in files:
        assert file.parent == tmp_path / "figures"
        assert re.fullmatch(r"[\w.-]+", file.name)
        if file.suffix == ".svg":
            assert "<svg" in file.read_text()
        else:
            assert file.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_a_run_without_a_line_gets_a_page_that_says_so(runs, tmp_path):
    (page,) = write_report([runs / "empty"], tmp_path / "report.html")
    assert "Nothing has been logged yet." in page.read_text()


def test_uploads_and_the_last_push_are_told(tmp_path):
    run = report_runs.erl(tmp_path / "run", generations=2)
    with lp.Lake.open(run / "lake") as lake:
        sizes = dict(lake.reader.heads[0].catalog.files())
    away = list(sizes)[:1]
    Elsewhere(run / "lake", "gs://bucket/run/lake").add(away)
    note = {"url": "gs://bucket/run", "time": 1.7e9, "last_error": "no <network>"}
    (run / "upload.json").write_text(json.dumps(note))
    (place,) = gather(run).uploads
    counts = place["place"], place["files"], place["bytes"], place["files_of"]
    assert counts == ("gs://bucket/run/lake", 1, sizes[away[0]], len(sizes))
    (page,) = write_report([run], tmp_path / "report.html")
    text = page.read_text()
    assert f"1 of {len(sizes)}" in text
    assert "no &lt;network&gt;" in text
    assert "2023-11-14 22:13 UTC" in text


def test_what_is_broken_is_named_and_the_rest_is_told(tmp_path):
    run = report_runs.evaluated(report_runs.erl(tmp_path / "run"))
    with (run / "metrics.jsonl").open("a") as file:
        file.write("{broken\n")
    commit = run / "lake" / "commits" / "0000000003.json"
    commit.write_bytes(commit.read_bytes()[:-9])
    (run / "evaluation" / "holdout" / "result.json").write_text("[")
    found = gather(run)
    assert len(found.metrics["fitness_best"].y) == 6
    assert [commit["number"] for commit in found.growth] == [0, 1, 2, 4, 5]
    assert len(found.problems) == 3
    (page,) = write_report([run], tmp_path / "report.html")
    for part in ("metrics.jsonl", "0000000003.json", "result.json"):
        assert part in page.read_text()


def test_a_log_of_100_000_lines_makes_a_page_in_seconds_with_few_points_a_curve(tmp_path):
    folder = report_runs.empty(tmp_path / "long")
    with (folder / "metrics.jsonl").open("w") as file:
        for k in range(100_000):
            answer = {"step": k, "time": 1.7e9 + k, "held_seconds": 0.001, "wave": (k * 37) % 1000}
            answer |= {"evaluation_agents": [k, -k], "evaluation": 1.0 * k} | {
                f"m{j}": k % (j + 2) for j in range(8)
            }
            file.write(json.dumps(answer) + "\n")
    began = time.process_time()
    found = gather(folder)
    drawn = figures([found])
    page = render([found], drawn)
    assert time.process_time() - began < 15  # 2.5 on an idle core
    assert len(found.metrics["wave"].y) == 100_000
    lines = [one for group in drawn.values() for chart in group for one in chart.lines]
    assert len(lines) >= 12
    assert max(len(one.x) for one in lines) == 600
    wave = chart_of(drawn, "wave").lines[0]
    assert (min(wave.low), max(wave.high), wave.x[-1]) == (0, 999, 99_999)
    assert len(page) < 1_000_000


def test_a_histogram_has_round_edges_and_counts_everything():
    edges, counts = histogram([-3.0, -0.1, 0.0, 2.0, 12.0])
    assert 0.0 in edges
    assert sum(counts) == 5
    assert sum(n for edge, n in zip(edges, counts, strict=False) if edge < 0) == 2
    assert histogram([3.0, 3.0]) == ((2.5, 3.5), (2,))


@pytest.mark.parametrize(
    ("times", "limit"),
    [
        ([30.0, 2.0, 1.0, 1.1, 0.9, 1.0], 2.4),  # the first generation compiles
        ([30.0, 1.0, 1.0, 25.0, 1.0, 1.0, 1.0], 1.2),  # and again after a resume
        ([1.0, 1.1, 0.9, 1.0, 3.9], None),
        ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], None),  # grows
        ([30.0, 1.0], None),
        ([], None),
    ],
)
def test_spikes_of_compilation_end_above_the_axis(times, limit):
    assert spike_limit([Line("t", range(len(times)), times)]) == (limit and pytest.approx(limit))


def test_a_spike_is_told_in_the_caption(tmp_path):
    folder = report_runs.empty(tmp_path / "run")
    with (folder / "metrics.jsonl").open("w") as file:
        for k, seconds in enumerate([30.0, 1.0, 1.1, 0.9, 1.0], 1):
            file.write(json.dumps({"step": k, "time": 1.7e9 + k, "seconds": seconds}) + "\n")
    chart = chart_of(figures([gather(folder)]), "seconds")
    assert chart.clip == pytest.approx(1.32)
    assert caption(chart).startswith(
        "Median 1 s, largest 30 s at generation 1. Above the axis, marked by triangles: 30 s at generation 1."
    )


def test_captions_tell_what_is_not_on_the_axes(runs):
    found = figures([gather(runs / "erl-1")])
    assert caption(chart_of(found, "fitness")).startswith(
        "Best agent: 60 at the end, from 10; mean: 30 at the end, from 5; champion, validation days: 7 at"
    )
    assert "60 kB in memory (100x less)" in caption(chart_of(found, "bytes"))
    assert "in the second half of the run" in caption(chart_of(found, "memory"))
    profits = caption(chart_of(found, "profits-holdout"))
    assert profits == "3 trades, 66.7 % with a profit; median 2 %, best 12 %, worst -3 %."


def test_any_numbers_can_be_drawn(tmp_path, visit):
    many = [
        [],
        [float("nan")] * 2,
        [0.0, 0.0],
        [1.0],
        [1e300, -1e300],
        [1e-12, 2e-12],
        [0.001, 0.001 + 2e-19],
    ]
    drawn = [Chart("b", "t", bars=histogram([3.0]))]
    for ys in many:
        lines = (Line("a", list(range(len(ys))), ys),)
        drawn += [Chart("k", "Title & <more>", lines, "step", log=log) for log in (False, True)]
    for one in drawn:
        json.dumps(as_json(one), allow_nan=False)
        caption(one)
    run = gather(report_runs.empty(tmp_path / "run"))
    (tmp_path / "r.html").write_text(render([run], {"learning": drawn}))
    page = visit((tmp_path / "r.html").as_uri())
    canvases = page.locator("figure canvas:not(.swatch)")
    canvases.nth(2 * len(many)).wait_for()  # the last of them
    assert canvases.count() == len(drawn)


def test_the_pages_write_numbers_as_the_terminal_does(chromium):
    script = resources.files("lakepond.report").joinpath("static", "numbers.js").read_text()
    page = chromium.new_page()
    page.add_script_tag(content=script + "; window.UNITS = UNITS; window.short = short", type="module")
    page.wait_for_function("window.short")  # a module runs later
    sizes = [0, 7, 999, 999.6, 1000, 1270, 54_432, 999_700, 1e6, 1.27e9, 196e9, 3e15]
    times = [0, 4e-6, 0.00123, 0.5, 0.9996, 1.5, 59.9, 59.96, 61.4, 119.7, 3599.7, 3723, 9000, 90_061, 1e6]
    values = [0, 3, -3, 0.12346, 1234.6, -1234.6, 12_345_678.6, 1e-7, 123_456_789, 0.001, 99.99]
    for name, python, many in (
        ("bytes", size, sizes),
        ("seconds", duration, times),
        ("", number, values),
        ("percent", percent, [0, -0.01, 25.35, 25.04, 100.4, 120, -3]),
    ):
        assert page.evaluate("([n, all]) => all.map(UNITS[n])", [name, many]) == [python(x) for x in many]
    many = [5, 999, 1000, 2500, 12_345, 1e6, 2.5e9]
    assert page.evaluate("all => all.map(short)", many) == [short(x) for x in many]
    page.close()


def test_the_command_writes_beside_the_run_unless_told(runs, tmp_path, monkeypatch, capsys):
    assert main(["report", str(runs / "erl-2")]) == 0
    assert Path(capsys.readouterr().out.strip()) == runs / "erl-2" / "report.html"
    monkeypatch.chdir(tmp_path)
    assert main(["report", str(runs / "erl-1"), str(runs / "erl-2"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"page": "report.html", "figures": []}
    assert "2 runs compared" in (tmp_path / "report.html").read_text()


def test_no_run_no_page(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 1
    assert "is not a run" in capsys.readouterr().err
    assert main(["report"]) == 2


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (360, "dark")])
def test_the_page_fits_the_screen_and_paper(runs, page_of_one, tmp_path, visit, width, scheme):
    (page_of_many,) = write_report(
        [runs / name for name in ("erl-1", "erl-2", "mixture")], tmp_path / "r.html"
    )
    for file in (page_of_one, page_of_many):
        page = visit(file.as_uri(), width=width, scheme=scheme)
        page.locator(".plot canvas").nth(page.locator("figure").count() - 1).wait_for()
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert page.locator(".plot canvas").count() == page.locator("figure").count() > 5
        ground = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        assert (ground == "rgb(255, 255, 255)") == (scheme == "light")
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        page.emulate_media(media="print")
        assert page.locator("nav:visible").count() == 0
        assert width < 600 or page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        paper = page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--ground')")
        assert paper.strip() == "#ffffff"


def test_charts_zoom_and_hover_together(page_of_one, visit):
    page = visit(page_of_one.as_uri())
    fitness, size = (
        page.locator(f"figure[aria-label='{name}']") for name in ("Fitness of the population", "Replay size")
    )
    box = fitness.locator(".u-over").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.61, box["y"] + 60)  # generation 4 of 1 to 6
    for figure, value in ((fitness, "best agent 40"), (size, "without deduplication 4 MB")):
        tip = figure.locator(".tip")
        assert "generation 4" in tip.inner_text()
        assert value in tip.inner_text()
    assert "mean 20 (16 to 24)" in fitness.locator(".tip").inner_text()
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.99, box["y"] + 60, steps=4)
    page.mouse.up()

    def shown(figure):
        return figure.evaluate("f => [f.chart.plot.scales.x.min, f.chart.plot.scales.x.max]")

    assert shown(fitness)[0] == pytest.approx(4.05, abs=0.2)
    assert shown(size) == pytest.approx(shown(fitness))
    size.locator("text=Reset zoom").click()
    assert shown(size) == [1, 6]
    fitness.locator(".u-over").dblclick()
    assert shown(fitness) == [1, 6]
    fitness.locator(".plot").focus()
    page.keyboard.press("ArrowRight")
    assert "generation" in fitness.locator(".tip").inner_text()


def test_lines_differ_without_colour_and_can_be_switched_off(page_of_one, visit):
    page = visit(page_of_one.as_uri())
    fitness = page.locator("figure[aria-label='Fitness of the population']")
    dashes = fitness.evaluate(
        "f => f.chart.plot.series.slice(1).filter(s => s.width).map(s => String(s.dash))"
    )
    assert len(dashes) == len(set(dashes)) == 3
    button = fitness.locator(".legend button", has_text="mean")
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    shown = fitness.evaluate("f => f.chart.plot.series.map(s => s.show)")
    assert shown == [True, True, False, False, False, True]


def test_without_scripts_the_captions_and_tables_are_there(page_of_one, chromium):
    with chromium.new_context(java_script_enabled=False) as context:
        page = context.new_page()
        page.goto(page_of_one.as_uri())
        assert "The charts need JavaScript" in page.inner_text("main")
        assert "Best agent: 60 at the end" in page.inner_text("main")
