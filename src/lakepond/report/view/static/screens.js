// What shows one observation: pictures, the window of a market, or plain numbers. Each has `element` and `show(at)`.

import { count, get, h, number, row, s, table } from "/static/dom.js";
import { figure, frame, path, band, range, follow, legend } from "/static/charts.js";

const KEPT_STRIPS = 24;

// Pictures come in strips of several steps, so that playing asks seldom; the strip after this one is fetched ahead.
export function pictureScreen({ told, question, signal, now }, field) {
  const canvas = h("canvas", { role: "img" });
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
      if ((k + 1) * size() < told.steps) strip(k + 1).catch(() => {});
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
    canvas.setAttribute("aria-label", `Observation at step ${now.at + 1} of ${told.steps}`);
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

// Asks for the newest wanted thing only: while one answer is on its way, others in between are dropped.
function latest(ask, use, fail) {
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

export function windowScreen({ spec, told, question, signal, now, move }, field) {
  const done = told.trades ?? null;  // what was bought and sold, if the run tells; else what the actions ask for
  const known = done !== null || (told.entries ?? null) !== null;
  const threshold = { value: told.threshold };
  let list = done ?? told.entries ?? [];
  let column = list.length ? mostEntered(list) : 0;
  let shown = null, added = null;
  const market = field.features.includes("close");
  const named = (k) => (spec.symbols?.length === field.columns ? spec.symbols[k] : String(k));
  const said = h("p", { class: "bad small", role: "status" });
  const price = figure("Prices in the window", (width, say) => drawPrice(width, say), "");
  const others = field.features.filter((name) => !market || !["open", "close", "high", "low"].includes(name));
  let panels = market ? ["rsi", "macd"] : others.slice(0, 3);
  const below = h("div", { class: "two tight" });
  const trades = h("div", {});
  const ask = latest((at) => get("observation", question({ leaf: field.leaf, at, column }), signal), use, (error) => { said.textContent = error.message; });

  function use(answer) {
    shown = answer;
    if (added === null) setAdded(market && looksLikeChanges(answer.curves.close));
    screen.shown = true;
    said.textContent = "";
    price.again();
    below.replaceChildren(...panels.filter((name) => answer.curves[name]).map((name) => smallPanel(name)));
    for (const panel of below.children) panel.again?.();
    for (const line of trades.querySelectorAll("tr[data-at]")) line.classList.toggle("held", isHeld(Number(line.dataset.at), line.dataset.exit));
  }
  const isHeld = (at, exit) => done !== null && at <= now.at && (exit === "" || now.at < Number(exit));
  function days() { return shown.curves[field.features[0]].map((_, i, all) => i - all.length + 1); }
  function drawPrice(width, say) {
    if (!shown) return s("svg", { width, height: 260 });
    const xs = days();
    const plain = market ? shown.curves.close : shown.curves[field.features[0]];
    const main = added ? addUp(plain) : plain;
    const banded = market && !added;
    const low = banded ? shown.curves.low : main, high = banded ? shown.curves.high : main;
    const made = frame(width, 260, range(xs), range([...low, ...high]), { xText: (v) => (v === 0 ? "now" : String(v)), yText: number });
    if (banded) made.svg.append(s("path", { class: "band f1", d: band(xs, low, high, made.x, made.y) }));
    made.svg.append(s("path", { class: "line k1", d: path(xs, main, made.x, made.y) }));
    drawMarks(made, xs, main, low, high);
    follow(made, xs, (i) => `${xs[i]} days: ${banded ? `close ${number(main[i])}, low ${number(low[i])}, high ${number(high[i])}` : number(main[i])}${tellDay(i - xs.length + 1 + shown.at)}`, say);
    return made.svg;
  }
  // Entries below the curve, exits above it, a line from one to the other while it was held, and what it came to.
  function drawMarks(made, xs, main, low, high) {
    const place = (at) => xs.length - 1 - (shown.at - at);
    for (const one of list) {
      const until = one.exit_at ?? Infinity;
      if (one.column !== column || one.at > shown.at || place(Math.min(until, shown.at)) < 0) continue;
      const i = place(one.at), j = place(Math.min(until, shown.at)), closed = until <= shown.at;
      const tone = one.profit === undefined || one.profit === null || !closed ? "f2" : one.profit >= 0 ? "gain" : "loss";
      if (done !== null && main[Math.max(0, i)] !== null && main[j] !== null) {
        made.svg.append(s("line", { class: `held ${tone}`, x1: made.x(xs[Math.max(0, i)]), y1: made.y(main[Math.max(0, i)]), x2: made.x(xs[j]), y2: made.y(main[j]) }));
      }
      if (i >= 0 && main[i] !== null) {
        const px = made.x(xs[i]), py = Math.min(made.y(low[i] ?? main[i]) + 5, made.bottom - 9);
        made.svg.append(s("path", { class: "entry f2", d: `M${px} ${py}l5 9h-10z` }));
      }
      if (closed && main[j] !== null) {
        const px = made.x(xs[j]), py = Math.max(made.y(high[j] ?? main[j]) - 5, made.top + 9);
        made.svg.append(s("path", { class: `exit ${tone}`, d: `M${px} ${py}l5 -9h-10z` }));
        const anchor = px > made.right - 30 ? "end" : "middle";
        if (one.profit !== null) made.svg.append(s("text", { class: `mark ${tone}`, x: px, y: Math.max(py - 13, made.top + 2), "text-anchor": anchor }, percent(one.profit)));
      }
    }
  }
  function tellDay(at) {
    if (done === null) return "";
    const here = list.filter((one) => one.column === column);
    return here.filter((one) => one.at === at).map((one) => `, bought${one.date ? ` on ${one.date}` : ""}`).join("")
      + here.filter((one) => one.exit_at === at).map((one) => `, sold${one.exit_date ? ` on ${one.exit_date}` : ""}${one.profit === null ? "" : ` for ${percent(one.profit)}`}`).join("");
  }
  function smallPanel(name) {
    const made = figure(name, (width, say) => {
      const xs = days();
      const lines = name === "macd" && shown.curves.macd_signal ? ["macd", "macd_signal"] : [name];
      const drawn = frame(width, 130, range(xs), range(lines.flatMap((line) => shown.curves[line])), { xText: (v) => (v === 0 ? "now" : String(v)), yText: number });
      lines.forEach((line, k) => drawn.svg.append(s("path", { class: `line k${k + 3}${k ? " dash" : ""}`, d: path(xs, shown.curves[line], drawn.x, drawn.y) })));
      follow(drawn, xs, (i) => `${xs[i]} days: ${lines.map((line) => `${line} ${number(shown.curves[line][i])}`).join(", ")}`, say);
      return drawn.svg;
    }, name.replaceAll("_", " "));
    return made;
  }
  function there(at, to, text) {
    return h("a", { href: location.hash, onclick: (event) => { event.preventDefault(); setColumn(to); move(at); } }, text);
  }
  function drawTrades() {
    if (!known) return;
    if (done !== null) { drawDone(); return; }
    const heads = ["#Step", "Instrument", "#Coefficient", "#Sale target, %"];
    const rows = list.slice(0, 300).map((entry) => row([
      there(entry.at, entry.column, count(entry.at + 1)),
      named(entry.column), number(entry.coefficient), number(entry.target)], heads, { class: entry.column === column ? "on" : null }));
    const input = h("input", { type: "number", id: "threshold", step: "any", value: String(threshold.value), onchange: (event) => setThreshold(Number(event.target.value)) });
    trades.replaceChildren(
      h("div", { class: "head" }, h("h3", {}, `Entries the actions ask for: ${count(list.length)}`), h("span", { class: "controls" }, h("span", {}, h("label", { for: "threshold" }, "from coefficient"), input))),
      list.length ? h("div", { class: "scroll tall", tabindex: "0", role: "region", "aria-label": "Table of entries" }, table(heads, rows, "Entries")) : h("p", { class: "quiet" }, "None reaches the threshold."),
      h("p", { class: "quiet small" }, "The instrument with the highest coefficient at each step, not again within 20 steps. Whether the market filled the order is not in the lake."));
  }
  function drawDone() {
    const heads = ["Instrument", "#Return", "Bought", "Sold", "Closed by", "#Sale target"];
    const moment = (at, column, date) => there(at, column, date ?? `step ${count(at + 1)}`);
    const rows = list.slice(0, 300).map((one) => row([
      named(one.column), one.profit === null ? "–" : h("span", { class: one.profit >= 0 ? "good" : "bad" }, percent(one.profit)),
      moment(one.at, one.column, one.date),
      one.exit_at !== null ? moment(one.exit_at, one.column, one.exit_date) : one.closed_by === "open" ? "held" : one.exit_until ? `by ${one.exit_until}` : "after the last step",
      one.closed_by, `${number(one.target)} %`], heads, { class: one.column === column ? "on" : null, "data-at": String(one.at), "data-exit": String(one.exit_at ?? "") }));
    const sum = list.reduce((all, one) => all + (one.profit ?? 0), 0), won = list.filter((one) => one.profit > 0).length;
    trades.replaceChildren(
      h("div", { class: "head" }, h("h3", {}, `Trades: ${count(list.length)}`),
        list.length && list.every((one) => one.profit !== null) ? h("span", { class: "quiet small" }, `${count(won)} with a profit, all together ${percent(sum)} of a stake`) : null),
      list.length ? h("div", { class: "scroll tall", tabindex: "0", role: "region", "aria-label": "Table of trades" }, table(heads, rows, "Trades")) : h("p", { class: "quiet" }, "Nothing was bought."),
      h("p", { class: "quiet small" }, "As the market filled them, returns after costs. What is sold after the last step, in settlement, is sold by its last day."));
  }
  async function setThreshold(value) {
    try {
      const again = await get("episode", question({ threshold: value }), signal);
      threshold.value = value;
      list = again.entries;
      drawTrades();
      price.again();
    } catch (error) { if (error.name !== "AbortError") said.textContent = error.message; }
  }
  function setAdded(value) {
    added = value;
    tick.querySelector("input").checked = value;
    lineName.textContent = value ? "close, days added up" : "close, low to high";
    price.again();
  }
  const tick = h("label", { class: "tick" }, h("input", { type: "checkbox", id: "added", onchange: (event) => setAdded(event.target.checked) }), "add the days up");
  const lineName = h("span", {}, "close");
  function setColumn(next) {
    column = next;
    if (chooser) chooser.querySelector("select").value = String(next);
    drawTrades();
    ask(now.at);
  }
  const chooser = field.columns > 1 ? h("span", {}, h("label", { for: "instrument" }, "Instrument"),
    h("select", { id: "instrument", onchange: (event) => setColumn(Number(event.target.value)) },
      Array.from({ length: field.columns }, (_, i) => h("option", { value: String(i), selected: i === column }, named(i))))) : null;
  const panelChooser = others.length > 2 ? h("span", {}, h("label", { for: "panel" }, "Below"),
    h("select", { id: "panel", onchange: (event) => { panels = event.target.value ? [event.target.value] : (market ? ["rsi", "macd"] : others.slice(0, 3)); if (shown) use(shown); } },
      h("option", { value: "" }, market ? "rsi and macd" : "the first"), others.map((name) => h("option", { value: name }, name.replaceAll("_", " "))))) : null;
  drawTrades();
  const sign = (kind, d, text) => h("li", {}, s("svg", { width: 12, height: 10, "aria-hidden": "true" }, s("path", { class: kind, d })), text);
  const element = h("div", { class: "player" },
    h("div", { class: "head" }, h("div", { class: "controls" }, chooser, panelChooser, market ? tick : null),
      market ? h("ul", { class: "legend" }, h("li", {}, s("svg", { width: 18, height: 8, "aria-hidden": "true" }, s("line", { class: "line k1", x1: 1, x2: 17, y1: 4, y2: 4 })), lineName),
        known ? sign("f2", "M6 0l5 9h-10z", done === null ? "entry" : "bought") : null,
        done !== null ? sign("gain", "M6 10l5 -9h-10z", "sold with a profit") : null,
        done !== null ? sign("loss", "M6 10l5 -9h-10z", "with a loss") : null) : null),
    price, said, below);
  const screen = { element, more: trades, show: ask, shown: false, busy: ask.busy };
  return screen;
}

const percent = (x) => `${x < 0 ? "−" : "+"}${Math.abs(x).toFixed(1)} %`;

// Prices follow from one day to the next, changes from day to day do not.
function looksLikeChanges(values) {
  const known = values.filter((value) => value !== null);
  if (known.length < 20) return false;
  const mean = known.reduce((a, b) => a + b, 0) / known.length;
  let same = 0, all = 0;
  known.forEach((value, i) => { all += (value - mean) ** 2; if (i) same += (value - mean) * (known[i - 1] - mean); });
  return same < 0.5 * all;
}

function addUp(values) {
  let sum = 0;
  return values.map((value) => (sum += value ?? 0));
}

function mostEntered(list) {
  const counts = new Map();
  for (const entry of list) counts.set(entry.column, (counts.get(entry.column) ?? 0) + 1);
  return [...counts.entries()].sort((a, b) => b[1] - a[1])[0][0];
}

export function vectorScreen({ question, signal }, field) {
  let shown = null, most = 1e-9, least = 0;
  const said = h("p", { class: "bad small", role: "status" });
  const bars = figure("The numbers of the observation", (width, say) => {
    if (!shown) return s("svg", { width, height: 180 });
    const values = shown.numbers;
    if (typeof values[0] === "string") return s("svg", { width, height: 40 }, s("text", { class: "label", x: 0, y: 20 }, values.slice(0, 20).join(", ")));
    const n = values.length;
    const every = Math.ceil((34 * n) / Math.max(1, width - 70));
    const made = frame(width, 200, [-0.5, n - 0.5], [least, most], { yText: number, xTicks: values.map((_, i) => [i, String(i)]).filter((_, i) => i % every === 0) });
    const room = (made.right - made.left) / n, zero = made.y(Math.min(Math.max(0, least), most));
    values.forEach((value, i) => {
      if (value === null) return;
      const y = made.y(value);
      made.svg.append(s("rect", { class: "bar-rect", x: made.x(i - 0.5) + room * 0.15, width: Math.max(0.5, room * 0.7), y: Math.min(y, zero), height: Math.max(1, Math.abs(zero - y)) }));
    });
    follow(made, values.map((_, i) => i), (i) => `[${i}] ${number(values[i])}`, say);
    return made.svg;
  }, "");
  const ask = latest((at) => get("observation", question({ leaf: field.leaf, at }), signal), (answer) => {
    shown = answer;
    screen.shown = true;
    for (const value of answer.numbers) if (typeof value === "number") { most = Math.max(most, value); least = Math.min(least, value); }
    bars.caption(answer.of > answer.numbers.length ? `The first ${count(answer.numbers.length)} of ${count(answer.of)} numbers.` : `${count(answer.of)} number${answer.of === 1 ? "" : "s"}; the scale grows to what has been seen in this episode.`);
    bars.again();
  }, (error) => { said.textContent = error.message; });
  const screen = { element: h("div", { class: "player" }, bars, said), show: ask, shown: false, busy: ask.busy };
  return screen;
}
