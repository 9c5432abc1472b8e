// A window over a market. Of a run that knows its prices: the price of an instrument over the whole episode, with dates
// and trades, and the indicators that the agent sees. Of any other lake: the values of the window as they were recorded.

import { count, figure, get, h, number, row, s, select, table } from "/static/dom.js";
import { chart, colour } from "/static/charts.js";
import { latest } from "/static/screens.js";

const INDICATORS = { rsi: ["rsi"], macd: ["macd", "macd_signal"], trix: ["trix"], distance_to_mean: ["distance_to_mean"] };
const PRICES = ["open", "close", "high", "low"];
const signed = (x) => `${x < 0 ? "−" : "+"}${Math.abs(x).toFixed(1)} %`;
const seconds = (text) => Date.parse(text) / 1000;

export function windowScreen({ spec, info, question, signal, now, move }, field) {
  const done = info.trades ?? null;  // what was bought and sold, if the run has it; else what the actions ask for
  const market = field.features.includes("close");
  const named = (k) => (spec.symbols?.length === field.columns ? spec.symbols[k] : String(k));
  let list = done ?? info.entries ?? [], threshold = info.threshold;
  let column = (list.find((one) => one.at === now.at) ?? list[0])?.column ?? 0;
  let prices = null, window_ = null;
  const said = h("p", { class: "bad small", role: "status" });
  const price = figure("Price"), below = h("div", { class: "charts" }), trades = h("div", {});
  const choices = market ? Object.keys(INDICATORS).filter((name) => field.features.includes(name)) : field.features;
  const usual = market ? ["rsi", "macd"] : field.features.slice(1, 3);
  let panels = usual;

  const ask = latest(async ({ at, k }) => {
    const known = prices?.column === k || prices === false ? prices : (await get("prices", question({ column: k }), signal)).prices;
    return [known ?? false, await get("observation", question({ leaf: field.leaf, at, column: k }), signal)];
  }, ([known, answer]) => {
    const changed = known !== prices;
    [prices, window_] = [known, answer];
    screen.shown = true;
    said.textContent = "";
    if (changed || !prices) drawPrice(); else price.chart.redraw();
    drawPanels();
    for (const line of trades.querySelectorAll("tr[data-at]")) line.classList.toggle("held", isHeld(Number(line.dataset.at), line.dataset.exit));
  }, (error) => { said.textContent = error.message; });
  const isHeld = (at, exit) => done !== null && at <= now.at && (exit === "" || now.at < Number(exit));

  // x of each row of the window: its date, or days before the step.
  const dated = () => Boolean(prices);
  const dayOf = (at) => prices.days[Math.min(at, prices.days.length - 1)];
  const span = () => (dated() ? [seconds(prices.dates[0]), seconds(prices.dates.at(-1))] : null);
  function windowXs(length) {
    if (!dated()) return Array.from({ length }, (_, i) => i - length + 1);
    return Array.from({ length }, (_, i) => { const day = dayOf(now.at) - length + 1 + i; return day >= 0 ? seconds(prices.dates[day]) : null; });
  }
  const step = () => (dated() ? seconds(prices.dates[dayOf(now.at)]) : 0);

  function drawPrice() {
    const title = market ? `${dated() ? "Price of" : "Window of"} ${field.columns > 1 ? named(column) : "the instrument"}` : "Window";
    price.querySelector("h3").textContent = title;
    const values = window_.curves[market ? "close" : field.features[0]];
    const data = dated()
      ? { x_name: "", unit: "", dates: true, xs: [prices.dates.map(seconds)], lines: [{ name: "", xs: 0, y: prices.close, colour: 0 }] }
      : { x_name: "days before the step", unit: "", xs: [windowXs(values.length)], lines: [{ name: "", xs: 0, y: values, colour: 0 }] };
    const text = dated() ? "Close of each day; the vertical line is the day of the step. Click to go to a day."
      : `${market ? "Close" : field.features[0]} as recorded (normalised)${market ? "; this lake has no prices" : ""}.`;
    price.querySelector("figcaption").textContent = text;
    if (price.chart) { price.chart.close(); price.querySelectorAll(".plot, .legend, .back").forEach((one) => one.remove()); }
    chart(price, data, {
      height: 300, share: "window", span: span(), over: drawMarks, tell: (_, i) => tellDay(i),
      now: dated() ? step : undefined,
      pick: dated() ? (_, i) => { const at = prices.days.findIndex((day) => day >= i); move(at < 0 ? info.steps - 1 : at); } : undefined,
    });
    count_();
  }

  // The index in the price chart of a step's day; before or after its range if it is outside.
  const place = (at) => (dated() ? (at < prices.days.length ? prices.days[at] : prices.dates.length - 1) : at - now.at + field.height - 1);
  const here = () => list.filter((one) => one.column === column && (dated() || one.at <= now.at));
  function count_() {
    price.dataset.entries = String(here().filter((one) => place(one.at) >= 0).length);
    price.dataset.exits = String(done === null ? 0 : here().filter((one) => one.exit_at !== null && place(one.exit_at) >= 0).length);
  }
  // Entries below the curve, exits above it with their return, and a line from one to the other while it was held.
  function drawMarks(u, pen, ratio) {
    const [xs, ys] = u.data, css = getComputedStyle(document.documentElement), tone = (name) => css.getPropertyValue(`--${name}`).trim();
    const point = (i) => [u.valToPos(xs[i], "x", true), u.valToPos(ys[i], "y", true)];
    const triangle = (x, y, up) => { pen.beginPath(); pen.moveTo(x, y); pen.lineTo(x + 6 * ratio, y + up * 11 * ratio); pen.lineTo(x - 6 * ratio, y + up * 11 * ratio); pen.fill(); };
    for (const one of here()) {
      const closed = one.exit_at !== null && one.exit_at !== undefined, i = place(one.at), j = closed ? place(one.exit_at) : null;
      const stroke = one.profit === null || one.profit === undefined ? colour(1) : tone(one.profit >= 0 ? "good" : "bad");
      if (done !== null && j !== null && ys[Math.max(0, i)] != null && ys[j] != null) {
        const [x0, y0] = point(Math.max(0, i)), [x1, y1] = point(j);
        pen.beginPath(); pen.strokeStyle = stroke; pen.lineWidth = 1.5 * ratio; pen.setLineDash([2 * ratio, 3 * ratio]); pen.moveTo(x0, y0); pen.lineTo(x1, y1); pen.stroke(); pen.setLineDash([]);
      }
      if (i >= 0 && ys[i] != null) { const [x, y] = point(i); pen.fillStyle = colour(1); triangle(x, y + 5 * ratio, 1); }
      if (j !== null && j >= 0 && ys[j] != null) {
        const [x, y] = point(j);
        pen.fillStyle = stroke;
        triangle(x, y - 5 * ratio, -1);
        pen.font = `600 ${11 * ratio}px system-ui, sans-serif`; pen.textAlign = "center"; pen.lineWidth = 3 * ratio; pen.strokeStyle = tone("ground");
        if (one.profit !== null && one.profit !== undefined) { pen.strokeText(signed(one.profit), x, y - 20 * ratio); pen.fillText(signed(one.profit), x, y - 20 * ratio); }
      }
    }
  }
  function tellDay(i) {
    const bought = here().filter((one) => place(one.at) === i).map(() => (done === null ? "entry" : "bought"));
    const sold = here().filter((one) => one.exit_at != null && place(one.exit_at) === i).map((one) => `sold${one.profit === null ? "" : `, ${signed(one.profit)}`}`);
    return [...bought, ...sold].join("; ");
  }

  const shownPanels = new Map();
  function drawPanels() {
    for (const [name, made] of shownPanels) if (!panels.includes(name)) { made.chart.close(); made.remove(); shownPanels.delete(name); }
    for (const name of panels) {
      const lines = (INDICATORS[name] ?? [name]).filter((one) => window_.curves[one]);
      if (!lines.length) continue;
      const xs = windowXs(window_.curves[lines[0]].length), kept = xs.map((x, i) => i).filter((i) => xs[i] !== null && (!dated() || xs[i] >= span()[0]));
      const data = { x_name: dated() ? "" : "days before the step", unit: "", dates: dated(), xs: [kept.map((i) => xs[i])],
        lines: lines.map((one, k) => ({ name: lines.length > 1 ? one.replaceAll("_", " ") : "", xs: 0, y: kept.map((i) => window_.curves[one][i]), colour: k })) };
      if (shownPanels.has(name)) { shownPanels.get(name).chart.update(data); continue; }
      const made = figure(name === "rsi" || name === "macd" ? name.toUpperCase() : name.replaceAll("_", " "), market ? "As the agent sees it at this step: normalised, up to the day of the step." : "");
      shownPanels.set(name, made);
      below.append(made);
      chart(made, data, { height: 150, share: "window", get span() { return span(); } });
    }
  }

  function there(at, to, text) {
    return h("a", { href: location.hash, onclick: (event) => { event.preventDefault(); setColumn(to); move(at); } }, text);
  }
  function drawTrades() {
    if (done !== null) drawDone(); else if (info.entries) drawEntries();
  }
  function drawEntries() {
    const heads = ["#Step", "Instrument", "#Coefficient", "#Sale target, %"];
    const rows = list.slice(0, 300).map((entry) => row([
      there(entry.at, entry.column, count(entry.at + 1)),
      named(entry.column), number(entry.coefficient), number(entry.target)], heads, { class: entry.column === column ? "on" : null }));
    const input = h("input", { type: "number", id: "threshold", step: "any", value: String(threshold), onchange: (event) => setThreshold(Number(event.target.value)) });
    trades.replaceChildren(
      h("div", { class: "head" }, h("h3", {}, `Entries requested by the actions: ${count(list.length)}`), h("span", { class: "controls" }, h("span", {}, h("label", { for: "threshold" }, "coefficient at least"), input))),
      list.length ? table("Entries", heads, rows) : h("p", { class: "quiet" }, "No action reaches the threshold."),
      h("p", { class: "quiet small" }, "The instrument with the highest coefficient of each step, at most once in 20 steps. The lake does not record whether the market filled the order."));
  }
  function drawDone() {
    const heads = ["Instrument", "#Return", "Bought", "Sold", "Closed by", "#Sale target"];
    const moment = (at, to, date) => there(at, to, date ?? `step ${count(at + 1)}`);
    const rows = list.slice(0, 300).map((one) => row([
      named(one.column), one.profit === null ? "–" : h("span", { class: one.profit >= 0 ? "good" : "bad" }, signed(one.profit)),
      moment(one.at, one.column, one.date),
      one.exit_at !== null ? moment(one.exit_at, one.column, one.exit_date) : one.closed_by === "open" ? "held" : one.exit_until ? `by ${one.exit_until}` : "after the last step",
      one.closed_by, `${number(one.target)} %`], heads, { class: one.column === column ? "on" : null, "data-at": String(one.at), "data-exit": String(one.exit_at ?? "") }));
    const sum = list.reduce((all, one) => all + (one.profit ?? 0), 0), won = list.filter((one) => one.profit > 0).length;
    trades.replaceChildren(
      h("div", { class: "head" }, h("h3", {}, `Trades: ${count(list.length)}`),
        list.length && list.every((one) => one.profit !== null) ? h("span", { class: "quiet small" }, `${count(won)} with a profit; sum of returns ${signed(sum)}`) : null),
      list.length ? table("Trades", heads, rows) : h("p", { class: "quiet" }, "Nothing was bought."),
      h("p", { class: "quiet small" }, "As the market filled them; returns after costs. Positions still open after the last step are sold during settlement, at the latest on the date shown."));
  }
  async function setThreshold(value) {
    try {
      const again = await get("episode", question({ threshold: value }), signal);
      [threshold, list] = [value, again.entries];
      drawTrades();
      if (price.chart?.plot) { count_(); price.chart.redraw(); }
    } catch (error) { if (error.name !== "AbortError") said.textContent = error.message; }
  }
  function setColumn(next) {
    column = next;
    if (chooser) chooser.querySelector("select").value = String(next);
    drawTrades();
    ask({ at: now.at, k: column });
  }
  const chooser = field.columns > 1 ? select("instrument", "Instrument", Array.from({ length: field.columns }, (_, i) => [i, named(i)]), column, (k) => setColumn(Number(k))) : null;
  const indicators = [["", market ? "RSI and MACD" : "first two"], ...[...choices, ...(market ? PRICES : [])].map((name) => [name, name.replaceAll("_", " ")])];
  const panelChooser = choices.length > 2 ? select("panel", "Indicator", indicators, "", (name) => { panels = name ? [name] : usual; if (window_) drawPanels(); }) : null;
  const sign = (kind, d, text) => h("li", {}, s("svg", { width: 12, height: 10, "aria-hidden": "true" }, s("path", { class: kind, d })), text);
  const signs = info.entries || done ? h("ul", { class: "legend" }, sign("f2", "M6 0l5 9h-10z", done === null ? "entry" : "bought"),
    done !== null ? [sign("gain", "M6 10l5 -9h-10z", "sold with a profit"), sign("loss", "M6 10l5 -9h-10z", "sold with a loss")] : null) : null;
  drawTrades();
  const element = h("div", { class: "player" }, h("div", { class: "head" }, h("div", { class: "controls" }, chooser, panelChooser), signs), h("div", { class: "charts" }, price), said, below);
  const screen = {
    element, more: trades, shown: false, busy: ask.busy, show: (at) => ask({ at, k: column }),
    close: () => { for (const one of [price, ...shownPanels.values()]) one.chart?.close(); },
  };
  return screen;
}
