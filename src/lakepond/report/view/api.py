"""The answers of the server: one method per address, which returns JSON or a PNG; docs/view.md lists them.

Every method takes the fields of the query and answers for one commit of one writer: `commit=N`, or the newest
intact one.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any

from lakepond._version import __version__
from lakepond.cloud.place import Cloud
from lakepond.flow.following.chains import chains_at
from lakepond.formats import json_numbers
from lakepond.lake.read.lake import Lake
from lakepond.report.commits import summarise
from lakepond.report.view import fields, files, pictures, trades
from lakepond.report.view.distribution import describe_distribution
from lakepond.report.view.episode import describe_episode, find_ids, observe, read_columns
from lakepond.report.view.episodes import ENDS, ORDERS, ROW, EpisodeIndex
from lakepond.report.view.opened import OpenedLake
from lakepond.report.view.query import BadQuery, Busy, Query, commit_number, one_of, real, whole
from lakepond.report.view.sharing import describe_sharing
from lakepond.report.view.training import Training
from lakepond.types import Array, leaves

MOST_COMMITS = 400
"""commits in one answer"""
COMMIT_SECONDS = 0.5
"""how long an answer may take to read commits"""
MOST_FILES = 200
"""files in one answer"""
DISCOVER_SECONDS = 30.0
"""interval between two searches for new writers"""
ASKED_AT_A_TIME = 16
EPISODES_KEPT = 16
"""episodes whose ids are remembered"""
COUNTING_SECONDS = 0.3
"""how long an answer waits for the episodes to be found: most lakes are through by then"""
DEFAULT_THRESHOLD = 0.5
"""coefficient from which an entry is marked, unless the rules of the run or the query have another"""


class Api:
    """Answers about one lake, in a folder or at a URL; thread-safe. Each writer has a `WriterApi`."""

    def __init__(self, place: str | Path | Cloud) -> None:
        self._chains = chains_at(place)
        self._lock = threading.Lock()
        self._writers: dict[str, WriterApi] = {}
        self._names: list[str] = []
        self._discovered = -math.inf
        self.lake({})  # starts to find the episodes of the first writer

    def of(self, query: Query) -> WriterApi:
        """The writer that a query is about: `writer=NAME`, or the first one that has a commit."""
        name = query.get("writer")
        with self._lock:
            if time.monotonic() - self._discovered > DISCOVER_SECONDS or name not in (None, *self._names):
                found = self._chains.names()
                with ThreadPoolExecutor(ASKED_AT_A_TIME, "lakepond-writers") as pool:
                    numbers = list(pool.map(self._chains.numbers, found))
                named = [name for name, known in zip(found, numbers, strict=True) if known]
                self._names, self._discovered = named or [""], time.monotonic()
            name = self._names[0] if name is None else name
            if name not in self._names:
                raise BadQuery(f"writer is one of {self._names}, not {name!r:.80}.")
            if name not in self._writers:
                self._writers[name] = WriterApi(OpenedLake(self._chains, name))
            return self._writers[name]

    def lake(self, query: Query) -> dict[str, Any]:
        """The lake: its writers, its spec, the newest commit of a writer, what is wrong with it."""
        return self.of(query).about() | {"writers": list(self._names)}

    def writers(self, query: Query) -> dict[str, Any]:
        """The newest commit of every writer."""
        lakes = [self.of({"writer": name}).lake for name in self._names]
        with ThreadPoolExecutor(ASKED_AT_A_TIME, "lakepond-writers") as pool:
            newest = [commit for commit, _ in pool.map(OpenedLake.newest, lakes)]
        known = [(lake.writer, c and summarise(c, lake.spec)) for lake, c in zip(lakes, newest, strict=True)]
        return {"writers": [{"name": name, "newest": commit} for name, commit in known]}

    def close(self) -> None:
        """Stop all threads, close all files."""
        for writer in self._writers.values():
            writer.close()
        self._chains.close()


class WriterApi:
    """Answers about one writer of a lake."""

    def __init__(self, lake: OpenedLake) -> None:
        self.lake = lake
        folder = lake.chains.folder
        self._run = None if folder is None else folder.resolve().parent
        self._index = EpisodeIndex(lake)
        self._older = EpisodeIndex(lake)  # of the commit that was asked for last, if it is not the newest
        self._find_ids = lru_cache(EPISODES_KEPT)(self._read_ids)
        self._training = None if self._run is None else Training(self._run)
        self._market_of: tuple[tuple[int, ...], trades.MarketRun | None] = ((), None)
        self._checking = threading.Lock()

    def close(self) -> None:
        """Stop all threads, close all files."""
        self._index.close()
        self._older.close()
        self.lake.close()

    # --- the lake --------------------------------------------------------------------------------

    def about(self) -> dict[str, Any]:
        """The newest commit, and what is wrong with it."""
        newest, problems = self.lake.newest()
        if newest is not None:
            self._index.go_to(newest)
        folder, place = self.lake.chains.folder, str(self.lake.chains)
        return {
            "version": __version__,
            "name": place.rstrip("/").rpartition("/")[2] if folder is None else folder.resolve().name,
            "path": place,
            "run": "" if self._run is None else self._run.name,
            "training": self._training is not None and self._training.exists(),
            "writer": self.lake.writer,
            "step_bytes": self.lake.spec.step_nbytes,
            "commits": len(self.lake.numbers()),
            "newest": newest and summarise(newest, self.lake.spec),
            "problems": problems,
        }

    def curves(self, query: Query) -> dict[str, Any]:
        """The charts of the run around the lake; only its state if they are those of `version`."""
        if self._training is None:
            raise BadQuery("the training of a lake in a bucket is not shown; pull the run to see it.")
        return self._training.curves(query.get("version", ""))

    def commits(self, query: Query) -> dict[str, Any]:
        """Commits, newest first, from `before` down; no more than are read in `COMMIT_SECONDS`."""
        numbers = self.lake.numbers()
        before = whole(query, "before", numbers[-1] + 1 if numbers else 0)
        found = [number for number in reversed(numbers) if number < before][:MOST_COMMITS]
        commits: list[dict[str, Any]] = []
        until = time.monotonic() + COMMIT_SECONDS
        for number in found:  # each is read from disk once, but that may take a while the first time
            commits.append(self.lake.summary(number))
            if time.monotonic() > until:
                break
        more = bool(commits) and commits[-1]["number"] > numbers[0]
        return {"commits": commits, "of": len(numbers), "more": more}

    def spec(self, query: Query) -> dict[str, Any]:
        """The fields of a step and how each observation is shown."""
        with self.lake.reading(commit_number(query)) as lake:
            run, spec = self._market(), lake.spec
            actions, extras = leaves(spec.action, "action"), spec.extras.items()
            return {
                "commit": lake.commit.number,
                "observations": [
                    {"leaf": i, "path": path, **fields.describe_field(field), **pictures.describe_kind(kind)}
                    for i, (path, field, kind) in enumerate(fields.kinds(lake))
                ],
                "actions": [{"path": path, **fields.describe_field(field)} for path, field in actions],
                "reward": fields.describe_field(spec.reward),
                "extras": [{"path": name, **fields.describe_field(field)} for name, field in extras],
                "columns": list(fields.columns_of(lake)),
                "symbols": [] if run is None or not fields.is_market(lake) else list(run.symbols),
            }

    def files(self, query: Query) -> dict[str, Any]:
        """The segments (`kind=steps`) or files of rows (`kind=rows`, by leaf) of a commit, newest first."""
        kind, offset = one_of(query, "kind", ("steps", "rows")), max(0, whole(query, "offset", 0))
        catalog = self.lake.catalog(commit_number(query))
        page, of = files.describe_files(catalog, kind, offset, MOST_FILES)
        return {"commit": catalog.commit.number, "files": page, "of": of, "offset": offset}

    def uploads(self, query: Query) -> dict[str, Any]:
        """How much of a commit is known to be in the cloud."""
        commit = self.lake.commit(commit_number(query)) if self.lake.numbers() else None
        return files.describe_uploads(self.lake.chains.folder, self.lake.writer, commit)

    def verify(self, query: Query) -> Iterator[dict[str, Any]]:
        """Check every byte of a commit; one line per file. One check at a time."""
        catalog = self.lake.catalog(commit_number(query))
        if not self._checking.acquire(blocking=False):
            raise Busy("a check is running already; wait for it, or close the other page.")
        try:
            with self.lake.lake(catalog.commit) as lake:
                totals = catalog.totals()
                yield {"commit": catalog.commit.number, "files": totals.files, "of": totals.bytes}
                yield from files.check(lake)
        finally:
            self._checking.release()

    # --- episodes --------------------------------------------------------------------------------

    def _index_of(self, query: Query) -> EpisodeIndex:
        """The index of a commit; that of the newest is extended at each commit, and one other is cached."""
        commit = self.lake.commit(commit_number(query))
        newest, _ = self.lake.newest()
        index = self._index if newest is not None and commit.number == newest.number else self._older
        index.go_to(commit)
        index.wait(COUNTING_SECONDS)
        return index

    def streams(self, query: Query) -> dict[str, Any]:
        """Streams with their steps, episodes and returns, and the returns over the steps."""
        index = self._index_of(query)
        streams = index.streams()
        return {
            "progress": index.progress(),
            "streams": streams[:1000],
            "of": len(streams),
            "returns": [json_numbers(row) for row in index.curve(120)],
        }

    def episodes(self, query: Query) -> dict[str, Any]:
        """One page of the episodes of a stream, or of all."""
        order, offset = one_of(query, "order", ORDERS), max(0, whole(query, "offset", 0))
        stream = whole(query, "stream") if "stream" in query else None
        limit = min(500, max(1, whole(query, "limit", 50)))
        index = self._index_of(query)
        found, known = index.page(stream, order, offset, limit)
        episodes = [
            dict(zip(ROW.names or (), (*numbers, *json_numbers([total]), ENDS[end]), strict=True))
            for *numbers, total, end in found.tolist()
        ]
        return {"progress": index.progress(), "episodes": episodes, "of": known}

    def episode(self, query: Query) -> dict[str, Any]:
        """One episode: rewards, returns, actions, and for a market its entries and trades."""
        with self.lake.reading(commit_number(query)) as lake:
            ids = self._steps(lake, query)
            found = describe_episode(lake, ids)
            found |= {"commit": lake.commit.number, "stream": whole(query, "stream")}
            if fields.is_market(lake):
                run = self._market()
                threshold = real(query, "threshold", run.rules.threshold if run else DEFAULT_THRESHOLD)
                entries = trades.find_entries(read_columns(lake, ids, ["action"])["action"], threshold)
                found |= {"threshold": threshold, "entries": entries}
                if run is not None and "threshold" not in query:
                    found |= {"trades": trades.describe_trades(lake, ids, run)}
            return found

    def _steps(self, lake: Lake, query: Query) -> Array:
        """The ids of the episode's steps."""
        episode = (whole(query, name) for name in ("stream", "first", "last"))
        return self._find_ids(lake.commit.number, *episode)

    def _read_ids(self, commit: int, stream: int, first: int, last: int) -> Array:
        with self.lake.reading(commit) as lake:
            return find_ids(lake, stream, first, last)

    def _some(self, lake: Lake, query: Query, count: int = 1) -> tuple[int, Array]:
        """The position `at` in the episode, and the ids of up to `count` of its steps from there on."""
        ids, at = self._steps(lake, query), whole(query, "at", 0)
        if not 0 <= at < len(ids):
            raise BadQuery(f"at={at} is outside of an episode of {len(ids)} steps.")
        return at, ids[at : at + count]

    def pictures(self, query: Query) -> bytes:
        """Some observations of an episode from its step `at` on, one below the other, as a PNG."""
        stacked = query.get("stack") == "1"
        with self.lake.reading(commit_number(query)) as lake:
            leaf, kind = self._leaf(lake, query)
            if not kind.height or kind.kind == "window":
                raise BadQuery(f"observation {leaf} is a {kind.kind}, not a picture; ask for `observation`.")
            most = pictures.frames_per_strip(kind, stacked)
            _, ids = self._some(lake, query, min(most, max(1, whole(query, "count", most))))
            values = observe(lake, ids, leaf, one_of(query, "which", ("obs", "next_obs")))
        return pictures.png(pictures.strip(values, kind, stacked))

    def observation(self, query: Query) -> dict[str, Any]:
        """One observation of an episode as numbers, of a window those of one instrument."""
        with self.lake.reading(commit_number(query)) as lake:
            leaf, kind = self._leaf(lake, query)
            at, step = self._some(lake, query)
            values = observe(lake, step, leaf, one_of(query, "which", ("obs", "next_obs")))[0]
        found = {"at": at, "step": int(step[0])}
        if kind.kind != "window":
            return found | fields.describe_vector(values)
        column = whole(query, "column", 0)
        if not 0 <= column < kind.columns:
            raise BadQuery(f"column={column} is not one of the {kind.columns} of this window.")
        return found | fields.describe_window(values, kind, column)

    def prices(self, query: Query) -> dict[str, Any]:
        """Dates and closing prices of an instrument around an episode of a market run; null if not known."""
        with self.lake.reading(commit_number(query)) as lake:
            run, column = self._market(), whole(query, "column", 0)
            ids = self._steps(lake, query)
            return {"prices": None if run is None else trades.describe_prices(lake, ids, run, column)}

    def step(self, query: Query) -> dict[str, Any]:
        """The small columns of one step of an episode, in full."""
        with self.lake.reading(commit_number(query)) as lake:
            at, step = self._some(lake, query)
            names = [*(p for p, _ in leaves(lake.spec.action, "action")), "reward", *lake.spec.extras]
            columns = read_columns(lake, step, [*names, "terminated", "truncated"])
        found = {name: fields.describe_vector(values[0]) for name, values in columns.items()}
        return {"at": at, "step": int(step[0]), "columns": found}

    # --- all steps -------------------------------------------------------------------------------

    def distribution(self, query: Query) -> dict[str, Any]:
        """The distribution of the values of a column."""
        commit = self.lake.commit(commit_number(query))
        with self.lake.lake(commit) as lake:  # of its own: this takes a while
            return {"commit": commit.number, **describe_distribution(lake, query.get("column", "reward"))}

    def sharing(self, query: Query) -> dict[str, Any]:
        """How many streams use each row."""
        commit = self.lake.commit(commit_number(query))
        with self.lake.lake(commit) as lake:
            leaf, _ = self._leaf(lake, query)
            run = self._market()
            return {"commit": commit.number, **describe_sharing(lake, leaf, run.dates if run else ())}

    # --- what an observation is ------------------------------------------------------------------

    def _leaf(self, lake: Lake, query: Query) -> tuple[int, fields.Kind]:
        known, leaf = fields.kinds(lake), whole(query, "leaf", 0)
        if not 0 <= leaf < len(known):
            raise BadQuery(f"leaf={leaf} is not one of the {len(known)} observations of a step.")
        return leaf, known[leaf][2]

    def _market(self) -> trades.MarketRun | None:
        """The market of the run around the lake, read again when its files change."""
        if self._run is None:
            return None
        stats = [file.stat() for name in trades.FILES if (file := self._run / name).exists()]
        state = tuple(number for one in stats for number in (one.st_mtime_ns, one.st_size))
        if self._market_of[0] != state:
            self._market_of = (state, trades.read_market_run(self._run))
        return self._market_of[1]
