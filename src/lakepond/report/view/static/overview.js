// The lake at a glance, beside the learning curves of its run: key figures, commits, returns, streams, fields.

import { ago, bytes, count, facts, figure, get, h, note, number, row, seconds, short, sleep, table, when } from "/static/dom.js";
import { chart } from "/static/charts.js";
import { liveCharts, runState } from "/static/training.js";

const MOST_COMMITS = 400;
const MOST_LISTED = 60;

export async function overview(main, { lake, words, signal, go }) {
  const wanted = words.commit;
  const [commits, spec, curves] = await Promise.all([
    get("commits", {}, signal), get("spec", { commit: wanted }, signal), lake.training ? get("curves", {}, signal) : null]);
  const writers = h("section", {}), top = h("div", {}), list = h("section", {}), streams = h("div", { class: "stack" }, h("p", { class: "quiet" }, "Finding episodes …"));
  const grid = h("div", { class: "charts" }), state = h("p", { class: "state" });
  const size = figure("Lake size at each commit"), returns = figure("Episode returns", "Finished episodes by their last step, in up to 120 groups: mean, with the range as a band.");
  const live = liveCharts(grid, (group) => group === "learning", false);
  let newest = lake, version = "";

  const show = (info) => {
    const mine = info.commits.find((commit) => commit.number === (wanted ? Number(wanted) : newest.newest.number)) ?? newest.newest;
    top.replaceChildren(figures(mine, newest));
    timeLine(size, info, (number_) => go("overview", { commit: number_ === newest.newest.number ? "" : number_ }), mine);
    list.replaceChildren(...commitTable(info, mine));
  };
  const follow = (info) => {
    if (!info) return;
    state.replaceChildren(...runState(info));
    if (info.groups) { live(info.groups); version = info.version; follow.last = info; }
  };
  const addReturns = (info) => {
    if (info.returns.length < 2) return;
    if (!returns.isConnected) grid.append(returns);
    const at = (k) => info.returns.map((point) => point[k]);
    const data = { x_name: "step", unit: "", xs: [at(0)], lines: [{ name: "", xs: 0, y: at(1), low: at(2), high: at(3), colour: 0 }] };
    if (returns.chart) returns.chart.update(data); else chart(returns, data);
  };

  main.replaceChildren(h("div", { class: "stack" },
    h("div", {}, h("h1", {}, lake.name === "lake" ? lake.run : lake.name), lake.training ? state : null, h("p", { class: "quiet" }, h("code", {}, lake.path))),
    top, grid, writers, list, streams, fields(spec)));
  if (lake.writers.length > 1) get("writers", {}, signal).then((info) => writers.replaceChildren(...writerTable(info.writers, lake.writer)), () => {});
  follow(curves);
  grid.prepend(...(grid.children.length ? [grid.firstChild] : []), size);
  show(commits);
  fillStreams(streams, wanted, signal, addReturns);
  fillCommits(commits, show, list, signal);
  return async (now, fresh) => {
    if (lake.training) {
      const info = await get("curves", { version }, signal);
      follow({ ...follow.last, groups: undefined, ...info });
    }
    if (!fresh) return;
    newest = now;
    show(await get("commits", {}, signal));
    fillStreams(streams, wanted, signal, addReturns);
  };
}

function figures(mine, lake) {
  const large = (n) => (n < 1e6 ? count(n) : short(n));
  return facts([
    ["Steps", large(mine.steps), mine.oldest ? `of ${count(mine.recorded)} recorded` : "all that were recorded"],
    ["Distinct rows", large(mine.rows), "each stored once"],
    ["On disk", bytes(mine.bytes), `${count(mine.segments)} segments`],
    ["Without deduplication", bytes(mine.bytes_plain), `${bytes(lake.step_bytes)} per step`],
    ["Smaller by", mine.bytes ? `${number(Number((mine.bytes_plain / mine.bytes).toPrecision(3)))}×` : "–", "deduplicated and compressed"],
    ["Last commit", ago(mine.time), `number ${mine.number}`],
  ]);
}

// Older commits are requested a page at a time: a lake may have many, and reading them takes time.
async function fillCommits(info, show, place, signal) {
  try {
    while (info.more && info.commits.length < MOST_COMMITS && info.commits.length) {
      const next = await get("commits", { before: info.commits.at(-1).number }, signal);
      if (!next.commits.length) return;
      info = { ...next, commits: [...info.commits, ...next.commits] };
      show(info);
    }
  } catch (error) {
    if (error.name !== "AbortError") place.append(note(error.message, "bad"));
  }
}

function timeLine(place, info, choose, mine) {
  const whole = info.commits.filter((commit) => !commit.error).reverse();
  const xs = whole.map((commit) => commit.number);  // not times: a pause would squeeze the rest together
  place.querySelector("figcaption").textContent = `${count(info.of)} commits; ${bytes(mine.bytes)} on disk at commit ${mine.number}. Click a point to show that commit.`;
  const data = { x_name: "commit", unit: "bytes", xs: [xs], lines: [{ name: "", xs: 0, y: whole.map((commit) => commit.bytes), colour: 0 }] };
  place.dataset.commits = String(whole.length);
  place.tell = (i) => `commit ${whole[i].number}: ${count(whole[i].steps)} steps, ${bytes(whole[i].bytes_written)} written`;
  place.pick = (i) => choose(whole[i].number);
  place.now = () => xs[whole.findIndex((commit) => commit.number === mine.number)];
  if (place.chart) place.chart.update(data);
  else chart(place, data, { share: "commits", tell: (_, i) => place.tell(i), pick: (_, i) => place.pick(i), now: () => place.now() });
}

function commitTable(info, mine) {
  const whole = info.commits.filter((commit) => !commit.error);
  const broken = info.commits.filter((commit) => commit.error);
  const heads = ["Commit", "Time", "#Steps", "#New steps", "#Written", "#Duration", "#On disk", "Note"];
  const rows = whole.slice(0, MOST_LISTED).map((commit) => row([
    h("a", { href: `#/overview?commit=${commit.number}`, "aria-current": commit.number === mine.number ? "true" : null }, String(commit.number)),
    h("span", { title: when(commit.time) }, ago(commit.time)),
    count(commit.steps),
    count(commit.recorded - (whole.find((other) => other.number === commit.parent)?.recorded ?? (commit.parent === null ? 0 : commit.recorded))),
    bytes(commit.bytes_written), seconds(commit.seconds), bytes(commit.bytes),
    shorten(Object.entries(commit.note).map(([name, value]) => `${name} ${JSON.stringify(value)}`).join(", "))], heads, { class: commit.number === mine.number ? "on" : null }));
  return [
    h("div", { class: "head" }, h("h2", {}, "Commits"), h("p", { class: "quiet small" }, `${count(info.of)} kept${info.more ? `, the newest ${info.commits.length} are shown` : ""}`)),
    broken.length ? h("p", { class: "bad small" }, `Broken: ${broken.slice(0, 20).map((commit) => commit.number).join(", ")}.`) : "",
    table("Commits", heads, rows, { label: "Commits, newest first" }),
    whole.length > MOST_LISTED ? h("p", { class: "quiet small" }, `The table has the newest ${MOST_LISTED}; the chart and the list at the top have more.`) : ""];
}

// All writers of the lake, and all together; the rest of the page is about one of them.
function writerTable(info, shown) {
  const heads = ["Writer", "#Commit", "Last commit", "#Steps", "#On disk"];
  const known = info.filter((each) => each.newest), sum = (key) => known.reduce((total, each) => total + each.newest[key], 0);
  const rows = known.map(({ name, newest }) => row([
    h("a", { href: `#/overview?${new URLSearchParams({ writer: name })}`, "aria-current": name === shown ? "true" : null }, name || "without a name"),
    String(newest.number), h("span", { title: when(newest.time) }, ago(newest.time)), count(newest.steps), bytes(newest.bytes)], heads, { class: name === shown ? "on" : null }));
  return [
    h("div", { class: "head" }, h("h2", {}, "Writers"), h("p", { class: "quiet small" }, `${count(info.length)} writers, together ${count(sum("steps"))} steps in ${bytes(sum("bytes"))}`)),
    table("Writers", heads, rows)];
}

const shorten = (text) => (text.length > 80 ? text.slice(0, 79) + "…" : text);

async function fillStreams(place, commit, signal, addReturns) {
  try {
    for (;;) {
      const info = await get("streams", { commit }, signal);
      if (signal.aborted) return;
      addReturns(info);
      place.replaceChildren(...streamsPart(info, commit));
      place.dataset.done = String(info.progress.done);
      if (info.progress.done || info.progress.error) return;
      await sleep(400);
    }
  } catch (error) {
    if (error.name !== "AbortError") place.replaceChildren(note(error.message, "bad"));
  }
}

function streamsPart(info, commit) {
  const heads = ["Stream", "#Steps", "#Episodes", "#Mean return", "#Best", "#Newest"];
  const going = info.progress.done ? null : h("p", { class: "quiet small" }, `${count(info.progress.steps)} of ${count(info.progress.of)} steps read `, h("progress", { max: info.progress.of, value: info.progress.steps, "aria-label": "Episodes found" }));
  const rows = info.streams.slice(0, 200).map((stream) => row([
    h("a", { href: `#/episodes?only=${stream.stream}${commit ? `&commit=${commit}` : ""}` }, String(stream.stream)),
    count(stream.steps), count(stream.episodes), number(stream.mean), number(stream.best), number(stream.newest)], heads));
  return [
    info.progress.error ? note(info.progress.error, "bad") : null,
    h("section", {},
      h("div", { class: "head" }, h("h2", {}, "Streams"), h("p", { class: "quiet small" }, `${count(info.of)} in total`)),
      going,
      table("Streams", heads, rows),
      info.of > 200 ? h("p", { class: "quiet small" }, "The first 200 are shown.") : null),
  ].filter(Boolean);
}

function fields(spec) {
  const heads = ["Field", "Kind", "Shape", "Type", "#Bytes"];
  const line = (path, kind, field) => row([h("code", {}, path), kind, h("code", {}, `[${field.shape.join(", ")}]`), field.dtype, count(field.bytes)], heads);
  return h("section", {}, h("h2", {}, "Fields of a step"),
    table("fields", heads, [
      ...spec.observations.map((field) => line(field.path, `observation, shown as ${field.kind}`, field)),
      ...spec.actions.map((field) => line(field.path, "action", field)),
      line("reward", "reward", spec.reward),
      ...spec.extras.map((field) => line(field.path, "extra", field))], { label: "Fields of a step", tall: false }));
}
