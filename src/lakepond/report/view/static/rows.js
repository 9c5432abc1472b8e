// Which rows are shared by whom.

import { count, facts, get, h, number, select } from "/static/dom.js";
import { barChart, heatMap } from "/static/charts.js";

export async function rows(main, { words, signal, go }) {
  const spec = await get("spec", { commit: words.commit }, signal);
  const leaf = Number(words.leaf ?? 0);
  const place = h("div", { class: "stack" }, h("p", { class: "quiet" }, "Following the windows …"));
  main.replaceChildren(h("div", { class: "stack" },
    h("div", { class: "head" }, h("h1", {}, "Rows"),
      spec.observations.length > 1 ? h("div", { class: "controls" }, select("leaf", "Observation", spec.observations.map((field) => [field.leaf, field.path]), leaf, (value) => go("rows", { ...words, leaf: value }))) : null),
    place));
  const told = await get("sharing", { commit: words.commit, leaf }, signal);
  if (told.kind === "plain") {
    place.replaceChildren(h("p", {}, "This observation is kept plainly, because its values do not repeat: no row is shared."));
    return;
  }
  if (told.kind === "empty") {
    place.replaceChildren(h("p", { class: "quiet" }, "No steps, no rows."));
    return;
  }
  const from = told.steps >= told.of ? "All live steps." : `The newest ${count(told.steps)} of ${count(told.of)} live steps.`;
  const many = told.streams_of > told.streams.length ? ` The ${told.streams.length} of ${count(told.streams_of)} streams with the most steps.` : "";
  const shared = told.shared.filter((bar) => bar.rows).reduce((sum, bar) => sum + (bar.by > 1 ? bar.rows : 0), 0);
  const last = told.shared.findLastIndex((bar) => bar.rows > 0) + 1;
  const names = told.streams.map((stream) => String(stream));
  place.replaceChildren(
    h("p", { class: "quiet" }, from + many),
    facts([
      ["Distinct rows", count(told.rows), `${told.length} to an observation`],
      ["Uses", count(told.uses), "in obs and next_obs"],
      ["Uses of a row", number(Math.round((10 * told.uses) / Math.max(1, told.rows)) / 10), "on average"],
      ["Shared by streams", `${((100 * shared) / Math.max(1, told.rows)).toFixed(0)} %`, `${count(shared)} rows`],
    ]),
    h("section", {}, h("h2", {}, "Who uses which rows"),
      heatMap("Uses of rows by stream", {
        values: told.uses_by_stream, names, caption: "One line a stream; from left to right the rows in the order in which they came into the lake. The stronger the colour, the more it was used.",
        xEnds: [`row ${count(told.first_row)}`, `row ${count(told.last_row)}`],
        tell: (i, j) => `Stream ${names[i]}: ${count(told.uses_by_stream[i][j])} uses of rows around ${count(Math.round(told.first_row + ((told.last_row - told.first_row) * (j + 0.5)) / told.uses_by_stream[i].length))}`,
      })),
    h("div", { class: "two" },
      h("section", {}, h("h2", {}, "By how many streams a row is used"),
        barChart("Rows by number of streams", { counts: told.shared.slice(0, last).map((bar) => bar.rows), labels: told.shared.slice(0, last).map((bar) => String(bar.by)), caption: "Rows, by the number of streams that use them." })),
      told.streams.length > 1 ? h("section", {}, h("h2", {}, "What two streams have in common"),
        heatMap("Rows in common", {
          values: told.overlap.map((line, i) => line.map((value) => value / Math.max(1, told.overlap[i][i]))), names, square: true,
          caption: "Of the rows of the stream on the left, the share that the other uses as well.", xEnds: [`stream ${names[0]}`, `${names.at(-1)}`],
          tell: (i, j) => `${count(told.overlap[i][j])} of the ${count(told.overlap[i][i])} rows of stream ${names[i]} are used by stream ${names[j]}`,
        })) : null));
}
