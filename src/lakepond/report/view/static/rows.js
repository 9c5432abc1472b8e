// How often rows are used, by which streams, and what deduplication saves.

import { bytes, count, figure, get, h, number, s, select } from "/static/dom.js";
import { chart } from "/static/charts.js";

export async function rows(main, { words, signal, go }) {
  const spec = await get("spec", { commit: words.commit }, signal);
  const leaf = Number(words.leaf ?? 0), field = spec.observations[leaf];
  const place = h("div", { class: "stack" }, h("p", { class: "quiet" }, "Counting …"));
  main.replaceChildren(h("div", { class: "stack" },
    h("div", { class: "head" }, h("h1", {}, "Rows"),
      spec.observations.length > 1 ? h("div", { class: "controls" }, select("leaf", "Observation", spec.observations.map((one) => [one.leaf, one.path]), leaf, (value) => go("rows", { ...words, leaf: value }))) : null),
    place));
  const info = await get("sharing", { commit: words.commit, leaf }, signal);
  if (info.kind === "plain") {
    place.replaceChildren(h("p", {}, "This observation is stored without deduplication, because its values do not repeat. No row is shared."));
    return;
  }
  if (info.kind === "empty") {
    place.replaceChildren(h("p", { class: "quiet" }, "There are no steps yet."));
    return;
  }
  const names = info.streams.map((stream) => String(stream)), all = info.streams_of === info.streams.length;
  const from = info.steps >= info.of ? `All ${count(info.of)} steps` : `The newest ${count(info.steps)} of ${count(info.of)} steps`;
  const many = all ? `, ${count(info.streams_of)} stream${info.streams_of === 1 ? "" : "s"}.` : `. The charts by stream show the ${info.streams.length} of ${count(info.streams_of)} streams with the most steps.`;
  const uses = info.uses_by_stream[0].map((_, j) => info.uses_by_stream.reduce((sum, line) => sum + line[j], 0));
  const row = field.bytes / info.length, of = info.dates ? "day" : "row";
  place.replaceChildren(
    h("p", { class: "quiet" }, from + many),
    funnel(info, row, all, of),
    h("section", {}, h("h2", {}, info.dates ? "Which days each stream uses" : "Which rows each stream uses"),
      heatMap("Uses of rows by stream", info.uses_by_stream, names, info.labels,
        `Each line is a stream (agent); ${info.dates ? "the days of the market from left to right" : "rows from left to right in the order in which they were stored"}. Stronger colour: used more often.`)),
    h("div", { class: "charts" }, usesChart(info, uses, of), names.length > 1 ? sharedChart(info, of) : null));
}

// What is stored, beside what a replay without deduplication, or one per stream, would store.
function funnel(info, row, all, of) {
  const steps = [["Without deduplication", info.uses, `every observation in full, obs and next_obs`]];
  if (all && info.streams.length > 1) steps.push(["Deduplicated per stream", info.rows_by_stream, `each of ${count(info.streams.length)} streams stores its own rows`]);
  steps.push(["Stored in this lake", info.rows, info.dates ? `each ${of} once, shared by all streams` : "each distinct row once"]);
  const most = Math.log10(info.uses + 1);
  return h("section", {}, h("h2", {}, "What deduplication saves"),
    h("table", { class: "funnel", "aria-label": "Rows stored" }, h("tbody", {}, steps.map(([name, value, why], i) => {
      const bar = s("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" }, s("rect", { class: `f${i === steps.length - 1 ? 3 : 6}`, width: Math.max(1, (100 * Math.log10(value + 1)) / most), height: 10, rx: 1 }));
      return h("tr", {}, h("th", { scope: "row" }, name, h("small", {}, why)), h("td", {}, bar),
        h("td", { class: "n" }, `${count(value)} rows`, h("small", {}, bytes(value * row))),
        h("td", { class: "n" }, i ? `${number(Number((info.uses / value).toPrecision(3)))}×` : "", i ? h("small", {}, "fewer") : ""));
    }))),
    h("p", { class: "quiet small" }, `${info.length === 1 ? "One row" : `${info.length} rows`} per observation; a row is used ${number(Number((info.uses / Math.max(1, info.rows)).toPrecision(3)))} times on average. Bars are logarithmic; sizes are before compression.`));
}

function usesChart(info, uses, of) {
  const most = uses.indexOf(Math.max(...uses));
  const made = figure(info.dates ? "Uses of each day" : "Uses of the rows", `A use is a window that contains the ${of}. Most uses from ${info.labels[most]} on.`);
  const xs = info.dates ? info.labels.map((text) => Date.parse(text) / 1000) : uses.map((_, i) => i);
  chart(made, { x_name: info.dates ? "" : "position in the lake", unit: "", dates: info.dates, xs: [xs], lines: [{ name: "", xs: 0, y: uses, colour: 0 }] }, { share: "rows", say: (x) => (info.dates ? `from ${new Date(x * 1000).toISOString().slice(0, 10)}` : info.labels[x]) });
  return made;
}

function sharedChart(info, of) {
  const last = info.shared.findLastIndex((bar) => bar.rows > 0) + 1, shown = info.shared.slice(0, last);
  const shared = shown.reduce((sum, bar) => sum + (bar.by > 1 ? bar.rows : 0), 0), everyone = info.shared.at(-1).rows, total = shown.reduce((sum, bar) => sum + bar.rows, 0) || 1;
  const made = figure(`Streams per ${of}`, shared ? `${Math.round((100 * shared) / total)} % of the ${of}s are used by more than one stream, ${Math.round((100 * everyone) / total)} % by all ${info.streams.length}.` : "No row is used by more than one stream.");
  chart(made, { kind: "bars", x_name: `streams that use a ${of}`, unit: "", counts: shown.map((bar) => bar.rows), labels: shown.map((bar) => String(bar.by)), share: true }, { share: "streams" });
  return made;
}

const LEFT = 46, TOP = 4, BOTTOM = 24;

// A table of numbers as shades, one line for each of `values`.
function heatMap(label, values, names, labels, caption) {
  const most = Math.max(1e-12, ...values.flat()), columns = labels.length, n = values.length;
  const place = h("div", {}), said = h("figcaption", {}, caption), made = h("figure", { "aria-label": label }, place, said);
  const draw = (width) => {
    const size = (width - LEFT - 8) / columns, line = Math.max(9, Math.min(22, 320 / n)), tall = TOP + line * n + BOTTOM;
    const svg = s("svg", { width, height: tall, viewBox: `0 0 ${width} ${tall}`, "aria-hidden": "true" }), every = Math.ceil(12 / line);
    values.forEach((cells, i) => {
      if (i % every === 0) svg.append(s("text", { x: LEFT - 8, y: TOP + line * (i + 0.5) + 4, "text-anchor": "end" }, names[i]));
      cells.forEach((value, j) => svg.append(s("rect", { x: LEFT + size * j, y: TOP + line * i, width: size, height: line - 1, "shape-rendering": "crispEdges", class: "f1", "fill-opacity": (value > 0 ? 0.1 + 0.9 * Math.sqrt(value / most) : 0.04).toFixed(3) })));
    });
    const marks = width > 600 ? [0, 0.25, 0.5, 0.75, 1] : [0, 1];
    marks.forEach((share) => { const j = Math.round(share * (columns - 1)); svg.append(s("text", { x: LEFT + (size * columns) * share, y: tall - 8, "text-anchor": share === 0 ? "start" : share === 1 ? "end" : "middle" }, labels[j])); });
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect(), j = Math.floor((event.clientX - box.left - LEFT) / size), i = Math.floor((event.clientY - box.top - TOP) / line);
      said.textContent = i >= 0 && i < n && j >= 0 && j < columns ? `Stream ${names[i]}, from ${labels[j]}: ${count(values[i][j])} uses.` : caption;
    });
    svg.addEventListener("pointerleave", () => { said.textContent = caption; });
    place.replaceChildren(svg);
  };
  let last = 0;
  new ResizeObserver(() => { const width = Math.floor(made.clientWidth); if (width > 60 && width !== last) { last = width; draw(width); } }).observe(made);
  return made;
}
