// How rewards, actions and extras are distributed.

import { count, facts, get, h, number, select } from "/static/dom.js";
import { barChart } from "/static/charts.js";

export async function values(main, { words, signal, go }) {
  const spec = await get("spec", { commit: words.commit }, signal);
  const column = spec.columns.includes(words.column) ? words.column : spec.columns[0];
  const place = h("div", { class: "stack" }, h("p", { class: "quiet" }, "Counting …"));
  main.replaceChildren(h("div", { class: "stack" },
    h("div", { class: "head" }, h("h1", {}, "Values"),
      h("div", { class: "controls" }, select("column", "Column", spec.columns.map((name) => [name, name]), column, (name) => go("values", { ...words, column: name })))),
    place));
  const told = await get("distribution", { commit: words.commit, column }, signal);
  const from = told.steps === told.of ? `All ${count(told.of)} live steps.` : `From ${count(told.steps)} of ${count(told.of)} live steps, in spans spread evenly over them.`;
  place.replaceChildren(h("p", { class: "quiet" }, from), h("div", { class: "two" }, told.parts.map((part) => onePart(column, part))));
}

function onePart(column, part) {
  const title = `${column}${part.name.startsWith("[") ? "" : " "}${part.name}`.trim();
  if (part.kind === "none") return h("section", {}, h("h2", {}, title), h("p", { class: "quiet" }, "No finite value."));
  const chart = part.kind === "choices"
    ? barChart(`Distribution of ${title}`, { counts: part.counts, labels: part.at.map(number) })
    : barChart(`Distribution of ${title}`, { counts: part.counts, edges: part.edges });
  return h("section", {}, h("h2", {}, h("code", {}, title)), chart,
    facts([["Lowest", number(part.low)], ["Mean", number(part.mean)], ["Highest", number(part.high)], ["Deviation", number(part.deviation)]]),
    part.not_finite ? h("p", { class: "bad small" }, `${count(part.not_finite)} of ${count(part.values)} values are not finite.`) : null);
}
