// What shows one observation: pictures or a vector of numbers; market.js shows a window. Each has `element` and `show(at)`.

import { count, figure, get, h, s } from "/static/dom.js";
import { chart } from "/static/charts.js";

const KEPT_STRIPS = 24;

// Pictures come in strips of several steps, so that playing needs few requests; the next strip is fetched ahead.
export function pictureScreen({ info, question, signal, now }, field) {
  const canvas = h("canvas", { role: "img", "aria-label": "Observation, not loaded yet" });
  const said = h("p", { class: "bad small", role: "status" });
  const strips = new Map();
  let stacked = false, waiting = null;

  const size = () => (stacked ? field.strip_of_stacks : field.strip);
  function strip(k) {
    const name = `${k} ${stacked}`;
    if (!strips.has(name)) {
      if (strips.size >= KEPT_STRIPS) { const oldest = strips.keys().next().value; strips.get(oldest).then((made) => made?.close?.()); strips.delete(oldest); }
      const made = get("pictures", question({ leaf: field.leaf, at: k * size(), stack: stacked ? 1 : "" }), signal).then((blob) => createImageBitmap(blob));
      made.catch(() => strips.delete(name));
      strips.set(name, made);
    }
    return strips.get(name);
  }
  async function show(at) {
    const mine = (waiting = { at });
    const k = Math.floor(at / size());
    try {
      const image = await strip(k);
      if (waiting !== mine) return;
      draw(image, at - k * size());
      said.textContent = "";
      screen.shown = true;
      if ((k + 1) * size() < info.steps) strip(k + 1).catch(() => {});
    } catch (error) {
      if (error.name !== "AbortError") said.textContent = error.message;
    }
    if (waiting === mine) waiting = null;
  }
  function draw(image, i) {
    const room = Math.max(160, Math.min(560, element.clientWidth - 24 || 400));
    const scale = Math.max(1, Math.floor(Math.min(room / image.width, 420 / field.height)));
    canvas.width = image.width * scale;
    canvas.height = field.height * scale;
    const pen = canvas.getContext("2d");
    pen.imageSmoothingEnabled = false;
    pen.drawImage(image, 0, i * field.height, image.width, field.height, 0, 0, canvas.width, canvas.height);
    canvas.setAttribute("aria-label", `Observation at step ${now.at + 1} of ${info.steps}`);
    canvas.dataset.at = String(now.at);
  }
  const tick = field.kind === "frames" && field.depth > 1
    ? h("label", { class: "tick" }, h("input", { type: "checkbox", id: "stack", onchange: (event) => { stacked = event.target.checked; show(now.at); } }), `all ${field.depth} frames of the stack`) : null;
  const channels = field.kind === "channels"
    ? h("ul", { class: "legend" }, field.colours.map((colour, i) => h("li", {}, s("svg", { width: 12, height: 12, "aria-hidden": "true" }, s("rect", { width: 12, height: 12, rx: 3, fill: colour })), `channel ${i}`))) : null;
  const element = h("div", { class: "player" }, h("div", { class: "screen" }, canvas), said, tick ? h("div", { class: "controls" }, tick) : null, channels);
  const screen = { element, show, shown: false, busy: () => waiting !== null };
  return screen;
}

// Requests only the newest value: those that came in while a request was under way are skipped.
export function latest(ask, use, fail) {
  let busy = false, wanted = null;
  async function run(value) {
    wanted = { value };
    if (busy) return;
    busy = true;
    while (wanted) {
      const { value: one } = wanted;
      wanted = null;
      try { use(await ask(one)); } catch (error) { if (error.name !== "AbortError") fail(error); }
    }
    busy = false;
  }
  run.busy = () => busy;
  return run;
}

export function vectorScreen({ question, signal }, field) {
  const said = h("p", { class: "bad small", role: "status" }), text = h("p", { class: "small" });
  const bars = figure("Observation", "");
  const ask = latest((at) => get("observation", question({ leaf: field.leaf, at }), signal), (answer) => {
    screen.shown = true;
    const { numbers } = answer, words = typeof numbers[0] === "string";
    bars.hidden = words;
    text.textContent = words ? numbers.slice(0, 20).join(", ") : "";
    bars.querySelector("figcaption").textContent = answer.of > numbers.length ? `The first ${count(numbers.length)} of ${count(answer.of)} numbers.` : `${count(answer.of)} number${answer.of === 1 ? "" : "s"}.`;
    if (words) return;
    const data = { kind: "bars", x_name: "index", unit: "", counts: numbers, labels: numbers.map((_, i) => String(i)) };
    if (bars.chart) bars.chart.update(data); else chart(bars, data, { height: 200, share: "vector" });
  }, (error) => { said.textContent = error.message; });
  const screen = { element: h("div", { class: "player" }, h("div", { class: "charts" }, bars), text, said), show: ask, shown: false, busy: ask.busy };
  return screen;
}
