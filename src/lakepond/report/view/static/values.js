// How rewards, actions and extras are distributed.

import { count, figure, get, h, number, select } from "/static/dom.js";
import { chart } from "/static/charts.js";

export async function values(main, { words, signal, go }) {
  const spec = await get("spec", { commit: words.commit }, signal);
  const column = spec.columns.includes(words.column) ? words.column : spec.columns[0];
  const place = h("div", { class: "stack" }, h("p", { class: "quiet" }, "Counting …"));
  main.replaceChildren(h("div", { class: "stack" },
    h("div", { class: "head" }, h("h1", {}, "Values"),
      h("div", { class: "controls" }, select("column", "Column", spec.columns.map((name) => [name, name]), column, (name) => go("values", { ...words, column: name })))),
    place));
  const info = await get("distribution", { commit: words.commit, column }, signal);
  const from = info.steps === info.of ? `All ${count(info.of)} steps.` : `A sample of ${count(info.steps)} of ${count(info.of)} steps, in spans spread evenly over the lake.`;
  place.replaceChildren(h("p", { class: "quiet" }, from), h("div", { class: "charts" }, info.parts.map((part) => onePart(column, part))));
}

function onePart(column, part) {
  const title = `${column}${part.name.startsWith("[") ? "" : " "}${part.name}`.trim();
  if (part.kind === "none") return h("section", {}, h("h3", {}, title), h("p", { class: "quiet" }, "No finite value."));
  const broken = part.not_finite ? ` ${count(part.not_finite)} of ${count(part.values)} values are NaN or infinite.` : "";
  const made = figure(title, `Mean ${number(part.mean)}, standard deviation ${number(part.deviation)}; lowest ${number(part.low)}, highest ${number(part.high)}.${broken}`);
  const sides = part.kind === "choices" ? { labels: part.at.map(number) } : { edges: part.edges };
  chart(made, { kind: "bars", x_name: "", unit: "", title, counts: part.counts, share: true, ...sides }, { share: `values ${title}` });
  return made;
}
