// Charts as SVG, drawn for the width they have and again when that changes. Colours are classes of style.css.

import { h, s, number, short } from "/static/dom.js";

const LEFT = 58, RIGHT = 12, TOP = 10, BOTTOM = 26;

// A figure whose drawing follows its width; `draw(width)` returns an <svg> or <canvas>.
export function figure(label, draw, caption = "") {
  const place = h("div", {});
  const told = h("figcaption", {}, caption);
  const whole = h("figure", { "aria-label": label }, place, told);
  let last = 0;
  const again = () => {
    const width = Math.floor(whole.clientWidth);
    if (width > 40) { last = width; place.replaceChildren(draw(width, (text) => { told.textContent = text || caption; })); }
  };
  new ResizeObserver(() => { if (Math.floor(whole.clientWidth) !== last) again(); }).observe(whole);
  whole.again = again;
  whole.caption = (text) => { caption = text; told.textContent = text; };
  return whole;
}

function niceStep(low, high, most) {
  const rough = (high - low) / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((k) => k * power).find((k) => k >= rough * 0.999);
}

export function ticks(low, high, most) {
  if (!(high > low)) return [low];
  const step = niceStep(low, high, most);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k += 1) found.push(Number((k * step).toPrecision(12)));
  return found.length < 2 && most < 8 ? ticks(low, high, most * 2) : found;
}

const SECONDS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800, 2592000, 7776000, 31536000];

// Round moments between two, with words that tell them apart.
export function timeTicks(low, high, most) {
  const step = 1000 * (SECONDS.find((k) => k * 1000 * most >= high - low) ?? SECONDS.at(-1));
  const options = step < 60e3 ? { hour: "2-digit", minute: "2-digit", second: "2-digit" } : step < 86400e3 ? { hour: "2-digit", minute: "2-digit" } : { day: "numeric", month: "short" };
  const format = new Intl.DateTimeFormat("en-GB", options);
  const shift = new Date(low).getTimezoneOffset() * 60e3;
  const found = [];
  for (let t = Math.ceil((low - shift) / step) * step + shift; t <= high; t += step) found.push([t, format.format(new Date(t))]);
  if (found.length < 2 && most < 8) return timeTicks(low, high, most * 2);
  return found.length ? found : [[low, format.format(new Date(low))]];
}

export const wholeTicks = (low, high, most) => ticks(low, high, Math.min(most, Math.max(1, high - low))).filter(Number.isInteger).map((v) => [v, short(v)]);

export function range(values, floor = null) {
  let low = Infinity, high = -Infinity;
  for (const value of values) {
    if (value === null || value === undefined) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  if (low > high) return [0, 1];
  if (floor !== null) low = Math.min(low, floor);
  if (low === high) { low -= Math.abs(low) * 0.05 || 0.5; high += Math.abs(high) * 0.05 || 0.5; }
  return [low, high];
}

// The frame of a chart: scales, grid and axes; returns what is needed to draw into it.
export function frame(width, height, [x0, x1], [y0, y1], { xText = short, yText = short, xTicks = null } = {}) {
  const step = niceStep(y0, y1, Math.max(2, height / 50));
  y0 = Math.floor(y0 / step + 1e-9) * step;  // the lowest and the highest line are round numbers
  y1 = Math.ceil(y1 / step - 1e-9) * step;
  const svg = s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
  const right = width - RIGHT, bottom = height - BOTTOM;
  const x = (v) => LEFT + ((v - x0) / (x1 - x0 || 1)) * (right - LEFT);
  const y = (v) => bottom - ((v - y0) / (y1 - y0 || 1)) * (bottom - TOP);
  for (const v of ticks(y0, y1, Math.round((y1 - y0) / step))) {
    svg.append(s("line", { class: "grid", x1: LEFT, x2: right, y1: y(v), y2: y(v) }));
    svg.append(s("text", { x: LEFT - 8, y: y(v) + 4, "text-anchor": "end" }, yText(v)));
  }
  const most = Math.max(2, Math.floor(width / 120));
  const marks = typeof xTicks === "function" ? xTicks(x0, x1, most) : xTicks ?? ticks(x0, x1, most).map((v) => [v, xText(v)]);
  for (const [v, text] of marks) {
    const at = x(v), anchor = at > right - 24 ? "end" : at < LEFT + 16 ? "start" : "middle";
    svg.append(s("text", { x: Math.min(at, right), y: height - 8, "text-anchor": anchor }, text));
  }
  svg.append(s("line", { class: "axis", x1: LEFT, x2: right, y1: bottom, y2: bottom }));
  return { svg, x, y, left: LEFT, right, top: TOP, bottom, back: (px) => x0 + ((px - LEFT) / (right - LEFT)) * (x1 - x0) };
}

// `M…L…` through all points, broken where a value is missing.
export function path(xs, ys, x, y) {
  let text = "", pen = false;
  for (let i = 0; i < ys.length; i += 1) {
    if (ys[i] === null || ys[i] === undefined) { pen = false; continue; }
    text += `${pen ? "L" : "M"}${x(xs[i]).toFixed(1)} ${y(ys[i]).toFixed(1)}`;
    pen = true;
  }
  return text;
}

export function band(xs, low, high, x, y) {
  const kept = xs.map((_, i) => i).filter((i) => low[i] !== null && high[i] !== null);
  if (!kept.length) return "";
  const there = kept.map((i) => `${x(xs[i]).toFixed(1)} ${y(high[i]).toFixed(1)}`);
  const back = kept.reverse().map((i) => `${x(xs[i]).toFixed(1)} ${y(low[i]).toFixed(1)}`);
  return `M${there.join("L")}L${back.join("L")}Z`;
}

// Tells the nearest point under the pointer; `pick` gets the index when it is pressed.
export function follow(made, xs, tell, say, pick = null) {
  const cursor = s("line", { class: "cursor", y1: made.top, y2: made.bottom, visibility: "hidden" });
  made.svg.append(cursor);
  const nearest = (event) => {
    const box = made.svg.getBoundingClientRect();
    const at = made.back((event.clientX - box.left) * (made.svg.viewBox.baseVal.width / box.width));
    let low = 0, high = xs.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (xs[middle] < at) low = middle + 1; else high = middle;
    }
    return low > 0 && at - xs[low - 1] < xs[low] - at ? low - 1 : low;
  };
  made.svg.addEventListener("pointermove", (event) => {
    if (!xs.length) return;
    const i = nearest(event);
    const px = made.x(xs[i]);
    cursor.setAttribute("x1", px); cursor.setAttribute("x2", px); cursor.setAttribute("visibility", "visible");
    say(tell(i));
  });
  made.svg.addEventListener("pointerleave", () => { cursor.setAttribute("visibility", "hidden"); say(""); });
  if (pick) {
    made.svg.addEventListener("pointerdown", (event) => { if (xs.length) pick(nearest(event)); });
  }
}

// Lines over a common x. `lines`: [{name, ys, low?, high?, dash?}]; at most six.
export function lineChart(label, { xs, lines, height = 220, floor = null, xText, yText, xTicks = null, caption, cursor = null, pick = null, xName = "" }) {
  const all = lines.flatMap((line) => [...line.ys, ...(line.low ?? []), ...(line.high ?? [])]);
  return figure(label, (width, say) => {
    const made = frame(width, height, range(xs), range(all, floor), { xText, yText, xTicks });
    lines.forEach((line, k) => {
      const colour = (k % 6) + 1;
      if (line.low) made.svg.append(s("path", { class: `band f${colour}`, d: band(xs, line.low, line.high, made.x, made.y) }));
      made.svg.append(s("path", { class: `line k${colour}${line.dash ? " dash" : ""}`, d: path(xs, line.ys, made.x, made.y) }));
      if (xs.length === 1 && line.ys[0] !== null) made.svg.append(s("circle", { class: `f${colour}`, r: 3, cx: made.x(xs[0]), cy: made.y(line.ys[0]) }));
    });
    if (cursor !== null) {
      const px = made.x(cursor());
      made.svg.append(s("line", { class: "cursor", x1: px, x2: px, y1: made.top, y2: made.bottom }));
    }
    const tell = (i) => `${xName ? xName + " " : ""}${(xText ?? number)(xs[i])}: ${lines.map((line) => `${line.name ? line.name + " " : ""}${(yText ?? number)(line.ys[i])}`).join(", ")}`;
    follow(made, xs, tell, say, pick);
    return made.svg;
  }, caption);
}

export function legend(names, dashes = []) {
  return h("ul", { class: "legend" }, names.map((name, k) => h("li", {},
    s("svg", { width: 18, height: 8, "aria-hidden": "true" }, s("line", { class: `line k${(k % 6) + 1}${dashes[k] ? " dash" : ""}`, x1: 1, x2: 17, y1: 4, y2: 4 })), name)));
}

// Bars from counts: `labels` under them (few), or the edges of ranges.
export function barChart(label, { counts, labels = null, edges = null, height = 190, caption = "" }) {
  const total = counts.reduce((a, b) => a + b, 0) || 1;
  return figure(label, (width, say) => {
    const n = counts.length;
    const xs = edges ? [edges[0], edges[n]] : [-0.5, n - 0.5];
    const room = (width - LEFT - RIGHT) / n;
    const every = Math.ceil(34 / Math.max(1, room));
    const xTicks = edges ? null : labels.map((text, i) => [i, text]).filter((_, i) => i % every === 0);
    const made = frame(width, height, xs, [0, Math.max(1, ...counts)], { xTicks, xText: number });
    counts.forEach((value, i) => {
      const from = edges ? made.x(edges[i]) : made.x(i - 0.5) + room * 0.12;
      const to = edges ? made.x(edges[i + 1]) - Math.min(1, room * 0.2) : made.x(i + 0.5) - room * 0.12;
      const top = value > 0 ? Math.min(made.y(value), made.bottom - 1) : made.bottom;
      made.svg.append(s("rect", { class: "bar-rect", x: from, width: Math.max(0.5, to - from), y: top, height: made.bottom - top }));
    });
    const middles = counts.map((_, i) => (edges ? (edges[i] + edges[i + 1]) / 2 : i));
    const name = (i) => (edges ? `${number(edges[i])} to ${number(edges[i + 1])}` : labels[i]);
    follow(made, middles, (i) => `${name(i)}: ${short(counts[i])} (${((100 * counts[i]) / total).toFixed(1)} %)`, say);
    return made.svg;
  }, caption);
}

// A table of numbers as shades; one line a row of `values`.
export function heatMap(label, { values, names, height = null, tell, caption = "", square = false, xEnds = ["", ""] }) {
  const most = Math.max(1e-12, ...values.flat());
  return figure(label, (width, say) => {
    const columns = values[0]?.length ?? 0, n = values.length;
    const room = (width - LEFT - RIGHT) / Math.max(1, columns);
    const size = square ? Math.min(36, room) : room;
    const line = square ? size : Math.max(9, Math.min(22, (height ?? 320) / Math.max(1, n)));
    const tall = TOP + line * n + BOTTOM;
    const svg = s("svg", { width, height: tall, viewBox: `0 0 ${width} ${tall}`, "aria-hidden": "true" });
    const every = Math.ceil(12 / line);
    values.forEach((cells, i) => {
      if (i % every === 0) svg.append(s("text", { x: LEFT - 8, y: TOP + line * (i + 0.5) + 4, "text-anchor": "end" }, names[i]));
      cells.forEach((value, j) => {
        const shade = value > 0 ? 0.1 + 0.9 * Math.sqrt(value / most) : 0.03;
        svg.append(s("rect", { x: LEFT + size * j, y: TOP + line * i, width: square ? size - 1 : size, height: line - 1, "shape-rendering": "crispEdges", class: "heat", "fill-opacity": shade.toFixed(3) }));
      });
    });
    svg.append(s("text", { x: LEFT, y: tall - 8 }, xEnds[0]));
    svg.append(s("text", { x: LEFT + size * columns, y: tall - 8, "text-anchor": "end" }, xEnds[1]));
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const j = Math.floor((event.clientX - box.left - LEFT) / size), i = Math.floor((event.clientY - box.top - TOP) / line);
      say(i >= 0 && i < n && j >= 0 && j < columns ? tell(i, j) : "");
    });
    svg.addEventListener("pointerleave", () => say(""));
    return svg;
  }, caption);
}
