// The learning curves of the run around the lake, updated while it trains.

import { ago, facts, figure, get, h, note } from "/static/dom.js";
import { chart } from "/static/charts.js";

export async function training(main, { signal }) {
  const info = await get("curves", {}, signal);
  const state = h("p", { class: "state" }), figures = h("div", {}), said = h("div", {}), groups = h("div", { class: "stack" });
  const live = liveCharts(groups, () => true);
  main.replaceChildren(h("div", { class: "stack" }, h("div", {}, h("h1", {}, info.name), state), said, figures, groups));
  let last = info;
  const show = (next) => {
    last = { ...last, ...next };
    state.replaceChildren(...runState(last));
    said.replaceChildren(...last.problems.map((text) => note(text, "bad")));
    if (!next.groups) return;
    figures.replaceChildren(facts(last.facts));
    live(next.groups);
    if (!next.groups.length) groups.replaceChildren(h("p", { class: "quiet" }, "Nothing has been logged yet."));
  };
  show(info);
  return async () => show(await get("curves", { version: last.version }, signal));
}

export function runState(info) {
  return [h("span", { class: info.running ? "dot on" : "dot" }), `${info.trainer}, ${info.running ? "running" : "not running"}`,
    info.logged ? `, last log line ${ago(new Date(info.logged * 1000).toISOString())}` : ""];
}

// Draws groups of charts into `place` and updates those that are there already; returns the function that does it.
export function liveCharts(place, wanted, heading = true) {
  const known = new Map();
  return (groups) => {
    for (const group of groups.filter((one) => wanted(one.key))) {
      if (!known.has(group.key)) {
        const grid = heading ? h("div", { class: "charts" }) : place;
        if (heading) place.append(h("section", {}, h("h2", {}, group.title), grid));
        known.set(group.key, { grid, charts: new Map() });
      }
      const { grid, charts } = known.get(group.key);
      for (const data of group.charts) {
        const there = charts.get(data.key);
        if (there) {
          there.querySelector("figcaption").textContent = data.caption;
          there.chart.update(data);
        } else {
          const made = figure(data.title, data.caption);
          charts.set(data.key, made);
          grid.append(made);
          chart(made, data);
        }
      }
    }
  };
}
