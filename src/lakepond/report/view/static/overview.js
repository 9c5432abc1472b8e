// The lake at a glance: its figures, its commits on a time line, returns, streams.

import { ago, bytes, count, facts, get, h, note, number, row, s, seconds, short, table, when } from "/static/dom.js";
import { figure, frame, legend, lineChart, path, follow, range, timeTicks, wholeTicks } from "/static/charts.js";

const MOST_COMMITS = 400;

export async function overview(main, { lake, words, signal, go }) {
  const wanted = words.commit;
  const [told, spec] = await Promise.all([get("commits", {}, signal), get("spec", { commit: wanted }, signal)]);
  const mine = told.commits.find((commit) => commit.number === spec.commit) ?? lake.newest;
  const streams = h("div", { class: "stack" }, h("p", { class: "quiet" }, "Finding episodes …"));
  const commits = h("div", {}, timeLine(told, mine, lake, go));
  main.replaceChildren(h("div", { class: "stack" },
    h("div", {}, h("h1", {}, lake.name === "lake" ? lake.run : lake.name), h("p", { class: "quiet" }, h("code", {}, lake.path))),
    facts([
      ["Steps", short(mine.steps), mine.oldest ? `live, of ${count(mine.recorded)} recorded` : "all that were recorded"],
      ["Distinct rows", short(mine.rows), "each kept once"],
      ["On disk", bytes(mine.bytes), `${count(mine.segments)} segments`],
      ["Plainly", bytes(mine.bytes_plain), `${bytes(lake.step_bytes)} a step`],
      ["Times smaller", mine.bytes ? number(Math.round((10 * mine.bytes_plain) / mine.bytes) / 10) : "–", "than plain, on disk"],
      ["Last commit", ago(mine.time), `number ${mine.number}`],
    ]),
    commits,
    streams,
    fields(spec)));
  fillStreams(streams, wanted, signal);
  fillCommits(commits, told, mine, lake, go, signal);
}

// Older commits come as they are read: a lake of many has large ones.
async function fillCommits(place, told, mine, lake, go, signal) {
  try {
    while (told.more && told.commits.length < MOST_COMMITS && told.commits.length) {
      const next = await get("commits", { before: told.commits.at(-1).number }, signal);
      told = { ...next, commits: [...told.commits, ...next.commits] };
      if (!next.commits.length) return;
      place.replaceChildren(timeLine(told, mine, lake, go));
    }
  } catch (error) {
    if (error.name !== "AbortError") place.append(note(error.message, "bad"));
  }
}

function timeLine(told, mine, lake, go) {
  const whole = told.commits.filter((commit) => !commit.error).reverse();
  const broken = told.commits.filter((commit) => commit.error);
  const times = whole.map((commit) => Date.parse(commit.time));
  const ordered = times.every((t, i) => i === 0 || t >= times[i - 1]) && times.at(-1) > times[0];
  const xs = ordered ? times : whole.map((commit) => commit.number);
  const ys = whole.map((commit) => commit.bytes);
  const choose = (i) => go("overview", { commit: whole[i].number === lake.newest.number ? "" : whole[i].number });
  const chart = figure("Size on disk at each commit", (width, say) => {
    const made = frame(width, 210, range(xs), range(ys, 0), { xTicks: ordered ? timeTicks : wholeTicks, yText: bytes });
    made.svg.append(s("path", { class: "line k1", d: path(xs, ys, made.x, made.y) }));
    const gap = (made.right - made.left) / Math.max(1, whole.length);
    whole.forEach((commit, i) => {
      const on = commit.number === mine.number;
      if (gap > 3 || on) made.svg.append(s("circle", { class: `dot f1${on ? " on" : ""}`, r: on ? 6 : Math.min(4.5, gap / 2 + 1), cx: made.x(xs[i]), cy: made.y(ys[i]) }));
    });
    follow(made, xs, (i) => `Commit ${whole[i].number}, ${when(whole[i].time)}: ${count(whole[i].steps)} steps, ${bytes(whole[i].bytes)}, ${bytes(whole[i].bytes_written)} new`, say, choose);
    return made.svg;
  }, "Size on disk at each commit. Press one to go there.");
  const heads = ["Commit", "When", "#Steps", "#New", "#Written", "#Took", "#On disk", "Note"];
  const rows = [...whole].reverse().slice(0, 60).map((commit, i, list) => row([
    h("a", { href: `#/overview?commit=${commit.number}`, "aria-current": commit.number === mine.number ? "true" : null }, String(commit.number)),
    h("span", { title: when(commit.time) }, ago(commit.time)),
    count(commit.steps),
    count(commit.recorded - (whole.find((other) => other.number === commit.parent)?.recorded ?? (commit.parent === null ? 0 : commit.recorded))),
    bytes(commit.bytes_written), seconds(commit.seconds), bytes(commit.bytes),
    h("code", {}, shorten(JSON.stringify(commit.note)))], heads, { class: commit.number === mine.number ? "on" : null }));
  return h("section", {},
    h("div", { class: "head" }, h("h2", {}, "Commits"), h("p", { class: "quiet small" }, `${count(told.of)} kept${told.more ? `, the newest ${told.commits.length} are shown` : ""}`)),
    whole.length > 1 ? chart : null,
    broken.length ? h("p", { class: "bad small" }, `Not whole: ${broken.slice(0, 20).map((commit) => commit.number).join(", ")}.`) : null,
    h("div", { class: "scroll tall", tabindex: "0", role: "region", "aria-label": "Table of commits" }, table(heads, rows, "Commits, newest first")),
    whole.length > 60 ? h("p", { class: "quiet small" }, "The table has the newest 60; the chart and the chooser above have more.") : null);
}

const shorten = (text) => (text === "{}" ? "" : text.length > 80 ? text.slice(0, 79) + "…" : text);

async function fillStreams(place, commit, signal) {
  try {
    for (;;) {
      const told = await get("streams", { commit }, signal);
      if (signal.aborted) return;
      place.replaceChildren(...streamsPart(told, commit));
      place.dataset.done = String(told.progress.done);
      if (told.progress.done || told.progress.error) return;
      await new Promise((resume) => setTimeout(resume, 400));
    }
  } catch (error) {
    if (error.name !== "AbortError") place.replaceChildren(note(error.message, "bad"));
  }
}

function streamsPart(told, commit) {
  const heads = ["Stream", "#Steps", "#Episodes", "#Mean return", "#Best", "#Newest"];
  const going = told.progress.done ? null : h("p", { class: "quiet small" }, `${count(told.progress.steps)} of ${count(told.progress.of)} steps looked at `, h("progress", { max: told.progress.of, value: told.progress.steps, "aria-label": "Episodes found" }));
  const xs = told.returns.map((point) => point[0]);
  const chart = xs.length > 1 ? h("section", {},
    h("div", { class: "head" }, h("h2", {}, "Returns of episodes"), legend(["mean, with lowest and highest"])),
    lineChart("Returns of episodes over steps", {
      xs, xName: "up to step", caption: "Finished episodes by their last step, in up to 120 groups.",
      lines: [{ name: "mean", ys: told.returns.map((p) => p[1]), low: told.returns.map((p) => p[2]), high: told.returns.map((p) => p[3]) }],
    })) : null;
  const rows = told.streams.slice(0, 200).map((stream) => row([
    h("a", { href: `#/episodes?only=${stream.stream}${commit ? `&commit=${commit}` : ""}` }, String(stream.stream)),
    count(stream.steps), count(stream.episodes), number(stream.mean), number(stream.best), number(stream.newest)], heads));
  return [
    told.progress.error ? note(told.progress.error, "bad") : null,
    chart,
    h("section", {},
      h("div", { class: "head" }, h("h2", {}, "Streams"), h("p", { class: "quiet small" }, `${count(told.of)} in all`)),
      going,
      h("div", { class: "scroll tall", tabindex: "0", role: "region", "aria-label": "Table of streams" }, table(heads, rows, "Streams")),
      told.of > 200 ? h("p", { class: "quiet small" }, "The first 200 are shown.") : null),
  ].filter(Boolean);
}

function fields(spec) {
  const heads = ["Field", "Kind", "Shape", "Type", "#Bytes"];
  const line = (path, kind, field) => row([h("code", {}, path), kind, h("code", {}, `[${field.shape.join(", ")}]`), field.dtype, count(field.bytes)], heads);
  return h("section", {}, h("h2", {}, "A step"),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of fields" }, table(heads, [
      ...spec.observations.map((field) => line(field.path, `observation, shown as ${field.kind}`, field)),
      ...spec.actions.map((field) => line(field.path, "action", field)),
      line("reward", "reward", spec.reward),
      ...spec.extras.map((field) => line(field.path, "extra", field))], "Fields of a step")));
}
