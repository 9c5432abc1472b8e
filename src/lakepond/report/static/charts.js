// Charts of the report and of `view`, drawn by uPlot: drag to zoom, double click to reset, arrow keys to read values.
// Charts with the same x axis share their cursor and their zoom. Colours are variables of base.css.

import { AXES, UNITS, date, number } from "/static/numbers.js";

const DASHES = [[], [8, 4], [2, 3], [12, 3, 2, 3], [5, 3], [16, 4]];
const FEW = 40;     // points of a line that each get a marker
const SPARSE = 8;   // markers of a longer line, where there are several lines to tell apart
const NEAR = 60;    // pixels from the cursor within which a line has a value to show
const FONT = '12px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif';
const WHOLE = Array.from({ length: 15 }, (_, k) => [1, 2, 5].map((n) => n * 10 ** k)).flat();  // steps of an axis of whole numbers
const drawn = new Set();
let theme = null;

function element(tag, name, ...children) {
  const made = document.createElement(tag);
  if (name) made.className = name;
  made.append(...children);
  return made;
}

function colours() {
  if (theme === null) {
    const css = getComputedStyle(document.documentElement);
    const read = (name) => css.getPropertyValue(`--${name}`).trim();
    theme = { ground: read("ground"), line: read("line"), strong: read("strong"), text: read("text"), quiet: read("quiet"), of: [1, 2, 3, 4, 5, 6].map((k) => read(`c${k}`)) };
  }
  return theme;
}

export const colour = (k) => colours().of[k % 6];
const dash = (k) => DASHES[(k + Math.floor(k / 6)) % 6];

// The marker of a line: a circle, square, triangle, diamond, cross or plus, so that lines differ without colour.
export function marker(pen, k, x, y, r) {
  pen.beginPath();
  const shape = (k + Math.floor(k / 6)) % 6, ends = (points) => points.forEach(([dx, dy], i) => (i ? pen.lineTo(x + dx * r, y + dy * r) : pen.moveTo(x + dx * r, y + dy * r)));
  if (shape === 0) pen.arc(x, y, r, 0, 7);
  else if (shape === 1) pen.rect(x - r * 0.9, y - r * 0.9, r * 1.8, r * 1.8);
  else if (shape === 2) ends([[0, -1.2], [1.1, 0.9], [-1.1, 0.9]]);
  else if (shape === 3) ends([[0, -1.3], [1.3, 0], [0, 1.3], [-1.3, 0]]);
  else if (shape === 4) ends([[-1.3, -0.7], [-0.7, -1.3], [0, -0.6], [0.7, -1.3], [1.3, -0.7], [0.6, 0], [1.3, 0.7], [0.7, 1.3], [0, 0.6], [-0.7, 1.3], [-1.3, 0.7], [-0.6, 0]]);
  else ends([[-0.4, -1.4], [0.4, -1.4], [0.4, -0.4], [1.4, -0.4], [1.4, 0.4], [0.4, 0.4], [0.4, 1.4], [-0.4, 1.4], [-0.4, 0.4], [-1.4, 0.4], [-1.4, -0.4], [-0.4, -0.4]]);
  pen.closePath();
  pen.fill();
}

function swatch(line) {
  const canvas = element("canvas", "swatch");
  canvas.width = 52; canvas.height = 20;
  canvas.setAttribute("aria-hidden", "true");
  const paint = () => {
    const pen = canvas.getContext("2d");
    pen.clearRect(0, 0, 52, 20);
    pen.scale(2, 2);
    pen.strokeStyle = pen.fillStyle = line.mark ? colours().strong : colour(line.colour);
    pen.lineWidth = line.thin || line.mark ? 1 : 2;
    pen.setLineDash(line.mark ? [3, 4] : line.thin ? [] : dash(line.colour));
    pen.beginPath();
    if (line.mark) { pen.moveTo(13, 0); pen.lineTo(13, 10); } else { pen.moveTo(0, 5); pen.lineTo(26, 5); }
    pen.stroke();
    if (!line.thin && !line.mark) marker(pen, line.colour, 13, 5, 3);
    pen.setTransform(1, 0, 0, 1, 0, 0);
  };
  paint();
  canvas.repaint = paint;
  return canvas;
}

// The lines of a chart over one common x, and which of uPlot's series belong to which line.
function aligned(data) {
  const positive = (values) => (data.log ? values.map((v) => (v > 0 ? v : null)) : values);
  const tables = data.lines.map((line) => [data.xs[line.xs], positive(line.y), ...(line.low ? [positive(line.low), positive(line.high)] : [])]);
  const same = data.lines.every((line) => line.xs === data.lines[0].xs);
  const values = same ? [tables[0][0], ...tables.flatMap((table) => table.slice(1))] : uPlot.join(tables);
  let next = 1;
  const places = data.lines.map((line) => { const at = next; next += line.low ? 3 : 1; return at; });
  return { values, places };
}

function bars(data) {
  const n = data.counts.length, middles = data.counts.map((_, i) => (data.edges ? (data.edges[i] + data.edges[i + 1]) / 2 : i));
  const below = data.counts.map((v, i) => (data.edges && data.edges[i] + data.edges[i + 1] < 0 ? v : null));
  return { values: [middles, data.counts.map((v, i) => (below[i] === null ? v : null)), below], ends: data.edges ? [data.edges[0], data.edges[n]] : [-0.5, n - 0.5] };
}

const DAY = 86400;
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
function moments(u, splits, _, __, step) {
  return splits.map((t) => {
    const at = new Date(t * 1000), day = at.getUTCDate(), month = MONTHS[at.getUTCMonth()], year = at.getUTCFullYear();
    if (step >= 360 * DAY) return String(year);
    if (step >= 28 * DAY) return `${month} ${year}`;
    return step >= DAY ? `${day} ${month}` : at.toTimeString().slice(0, step < 60 ? 8 : 5);
  });
}

const wide = (u, values, k) => {
  if (!values) return 40;
  u.ctx.font = u.axes[k].font[0];
  return Math.ceil(Math.max(...values.map((text) => u.ctx.measureText(text ?? "").width)) / devicePixelRatio) + 18;
};

// Powers of ten inside a logarithmic scale, every second or third if there are many.
function powers(u, _, low, high) {
  const first = Math.ceil(Math.log10(low) - 1e-9), last = Math.floor(Math.log10(high) + 1e-9), step = Math.max(1, Math.ceil((last - first) / 5)), found = [];
  for (let k = first; k <= last; k += step) found.push(10 ** k);
  return found.length > 1 ? found : [low, high];
}

// Draws `data` into a <figure>, below its heading. `more`: height, share (key of a shared cursor), pick(x), now() (x of a
// vertical line), over(u, pen) (drawn on top), span ([low, high] of x), say(x) (text of an x value).
export function chart(figure, data, more = {}) {
  const box = element("div", "plot"), tip = element("div", "tip"), names = element("ul", "legend");
  const back = element("button", "back", "Reset zoom");
  tip.hidden = back.hidden = true;
  back.type = "button";
  back.addEventListener("click", () => whole());
  figure.querySelector("figcaption").before(names, box);
  (figure.querySelector("h3") ?? names).after(back);
  const height = () => (matchMedia("(max-width: 44rem)").matches ? Math.min(more.height ?? 240, 220) : more.height ?? 240);
  const said = more.say ?? ((x) => (data.dates ? date(x) : `${data.x_name ? data.x_name + " " : ""}${number(x)}`));
  let u = null, hidden = new Set(), places = [], full = null;
  const ends = (xs) => full ?? more.span ?? (xs.length > 1 ? [xs[0], xs.at(-1)] : [xs[0] - 0.5, xs[0] + 0.5]);

  function whole() {
    const [min, max] = ends(u.data[0]);
    u.setScale("x", { min, max });
  }

  function series() {
    if (data.kind === "bars") {
      const columns = uPlot.paths.bars({ size: [data.edges ? 0.98 : 0.75, 60] });
      return [0, 1].map((k) => ({ paths: columns, stroke: () => colour(k), fill: () => colour(k) + "cc", width: 1, points: { show: false } }));
    }
    return data.lines.flatMap((line) => {
      const quiet = { width: 0, stroke: "transparent", points: { show: false } };
      const mine = { stroke: () => colour(line.colour) + (line.thin ? "80" : ""), width: line.thin ? 1 : 2, dash: line.thin ? [] : dash(line.colour), points: { show: false } };
      return line.low ? [mine, quiet, { ...quiet }] : [mine];
    });
  }

  function build() {
    const made = data.kind === "bars" ? bars(data) : aligned(data);
    places = made.places ?? [1];
    full = made.ends ?? null;
    const text = AXES[data.unit] ?? number, along = data.kind === "bars" ? text : (v) => AXES[""](v), up = data.kind === "bars" ? AXES[""] : text;
    const axis = { stroke: () => colours().quiet, font: FONT, ticks: { show: false }, grid: { stroke: () => colours().line, width: 1 } };
    const bands = data.kind === "bars" ? [] : data.lines.flatMap((line, i) => (line.low ? [{ series: [places[i] + 2, places[i] + 1], fill: () => colour(line.colour) + "2b" }] : []));
    u = new uPlot({
      width: Math.max(120, box.clientWidth), height: height(), legend: { show: false }, padding: [8, 12, 0, 0],
      tzDate: (t) => uPlot.tzDate(new Date(t * 1000), "Etc/UTC"),
      scales: {
        x: { time: Boolean(data.dates), range: (_, low, high) => (low === null ? [0, 1] : low === high ? [low - 0.5, high + 0.5] : [low, high]) },
        y: data.log ? { distr: 3 } : { range: (_, low, high) => (low === null ? [0, 1] : uPlot.rangeNum(data.kind === "bars" ? Math.min(0, low) : low, data.clip ? Math.min(high, data.clip) : high, 0.08, true)) },
      },
      axes: [
        { ...axis, size: 24, label: data.x_name || undefined, labelSize: 18, labelGap: 0, labelFont: FONT, gap: 4, grid: { show: false }, border: { show: true, stroke: () => colours().strong, width: 1 }, space: data.dates ? 80 : 60, ...(data.xs?.every((xs) => xs.every(Number.isInteger)) && !data.dates ? { incrs: WHOLE } : {}),
          values: data.dates ? moments : data.labels ? (_, splits) => splits.map((v) => data.labels[v] ?? "") : (_, splits) => splits.map(along),
          splits: data.labels ? (self) => { const step = Math.max(1, Math.ceil((data.labels.length * 34) / Math.max(1, self.bbox.width / devicePixelRatio))); return data.labels.map((_, i) => i).filter((i) => i % step === 0); } : undefined },
        { ...axis, size: wide, gap: 8, ...(data.log ? { splits: powers } : {}), values: (_, splits) => splits.map((v) => (v === null ? "" : up(v))) },
      ],
      series: [{}, ...series()], bands,
      cursor: {
        y: false, sync: { key: more.share ?? `${data.x_name} ${data.dates ? "date" : ""}`, setSeries: false, scales: ["x", null] }, drag: { x: true, y: false, setScale: true },
        hover: { skip: [null, undefined], prox: NEAR }, points: { size: (self, k) => (data.kind === "bars" || places.includes(k) ? 9 : 0), fill: (self, k) => self.series[k].stroke(), stroke: () => colours().ground, width: 2 },
      },
      hooks: { draw: [overlay], setCursor: [tell], setScale: [(self, key) => { if (key === "x") zoomed(self); }] },
    }, made.values, box);
    if (full || more.span) whole();
    u.over.append(tip);
    u.over.addEventListener("dblclick", () => whole());
    if (more.pick) { u.over.classList.add("pick"); u.over.addEventListener("click", () => { if (u.select.width < 3 && u.cursor.idx !== null) more.pick(u.data[0][u.cursor.idx], u.cursor.idx); }); }
  }

  function zoomed(self) {
    const [low, high] = ends(self.data[0]), { min, max } = self.scales.x, near = (high - low) * 1e-6;
    back.hidden = !(min > low + near || max < high - near);
  }

  function overlay(self) {
    const pen = self.ctx, ratio = devicePixelRatio, { left, top, width, height: tall } = self.bbox;
    const at = (x) => self.valToPos(x, "x", true), rule = (x, look) => { const px = Math.round(at(x)); if (px < left || px > left + width) return; pen.beginPath(); pen.setLineDash(look.dash.map((d) => d * ratio)); pen.strokeStyle = look.stroke; pen.lineWidth = ratio; pen.moveTo(px, top); pen.lineTo(px, top + tall); pen.stroke(); };
    pen.save();
    for (const x of data.marks ?? []) rule(x, { dash: [3, 4], stroke: colours().strong });
    if (more.now) rule(more.now(), { dash: [], stroke: colours().text });
    pen.setLineDash([]);
    pen.beginPath(); pen.rect(left - 6 * ratio, top - 6 * ratio, width + 12 * ratio, tall + 12 * ratio); pen.clip();
    const several = (data.lines ?? []).filter((line) => !line.thin).length > 1;
    (data.lines ?? []).forEach((line, i) => {
      if (line.thin || hidden.has(i)) return;
      const ys = self.data[places[i]], [first, last] = self.series[0].idxs ?? [0, ys.length - 1], here = [];
      for (let k = first; k <= last; k += 1) if (ys[k] !== null && ys[k] !== undefined) here.push(k);
      pen.fillStyle = colour(line.colour);
      const every = here.length <= FEW ? 1 : several ? Math.ceil(here.length / SPARSE) : 0;
      here.forEach((k, n) => {
        const x = at(self.data[0][k]), off = data.clip && ys[k] > data.clip;
        if (off) { marker(pen, 2, x, top + 7 * ratio, 5 * ratio); return; }
        if (every && (n + Math.floor((i * every) / 3)) % every === 0) marker(pen, line.colour, x, self.valToPos(ys[k], "y", true), (here.length <= FEW ? 3 : 3.5) * ratio);
      });
    });
    more.over?.(self, pen, ratio);
    pen.restore();
  }

  function tell(self) {
    const { left, idx, idxs } = self.cursor;
    tip.hidden = left < 0 || idx === null || idx === undefined;
    if (tip.hidden) return;
    const text = UNITS[data.unit] ?? number, rows = [];
    if (data.kind === "bars") {
      const total = data.counts.reduce((a, b) => a + b, 0) || 1, value = data.counts[idx];
      const where = data.edges ? `${text(data.edges[idx])} to ${text(data.edges[idx + 1])}` : data.labels[idx];
      rows.push(element("b", "", `${data.x_name ? data.x_name + " " : ""}${where}`), element("span", "", data.share ? `${number(value)} (${((100 * value) / total).toFixed(1)} %)` : number(value)));
    } else {
      rows.push(element("b", "", said(self.data[0][idx])));
      const known = data.lines.map((line, i) => ({ line, i, k: idxs?.[places[i]] ?? null })).filter(({ line, i, k }) => k !== null && !line.thin && !hidden.has(i) && self.data[places[i]][k] != null);
      for (const { line, i, k } of known.slice(0, 8)) {
        const spread = line.low && self.data[places[i] + 1][k] != null ? ` (${text(self.data[places[i] + 1][k])} to ${text(self.data[places[i] + 2][k])})` : "";
        const row = element("span", "", `${line.name ? line.name + " " : ""}${text(self.data[places[i]][k])}${spread}`);
        row.style.setProperty("--mark", colour(line.colour));
        rows.push(row);
      }
      const more_ = more.tell?.(self.data[0][idx], idx);
      if (more_) rows.push(element("span", "", more_));
    }
    tip.replaceChildren(...rows);
    const room = self.over.clientWidth, width = tip.offsetWidth;
    tip.style.left = `${left + 14 + width < room ? left + 14 : Math.max(0, left - width - 14)}px`;
  }

  function legend() {
    const named = (data.lines ?? []).map((line, i) => [line, i]).filter(([line]) => line.name && !line.thin);
    const items = named.map(([line, i]) => {
      const button = element("button", "", swatch(line), line.name);
      button.type = "button";
      button.setAttribute("aria-pressed", String(!hidden.has(i)));
      button.addEventListener("click", () => {
        if (hidden.has(i)) hidden.delete(i); else hidden.add(i);
        button.setAttribute("aria-pressed", String(!hidden.has(i)));
        for (let k = 0; k < (line.low ? 3 : 1); k += 1) u.setSeries(places[i] + k, { show: !hidden.has(i) });
      });
      return element("li", "", button);
    });
    if ((data.lines ?? []).some((line) => line.thin)) items.push(element("li", "", swatch({ colour: 5, thin: true }), "each agent"));
    if (data.marks?.length) items.push(element("li", "", swatch({ mark: true }), "reset"));
    names.replaceChildren(...items);
    names.hidden = !items.length;
  }

  box.tabIndex = 0;
  box.setAttribute("role", "img");
  box.setAttribute("aria-label", `Chart: ${data.title || figure.getAttribute("aria-label") || ""}. Left and right arrow keys read its values.`);
  box.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault(); event.stopPropagation();
    const [first, last] = u.series[0].idxs, next = Math.min(last, Math.max(first, (u.cursor.idx ?? (step > 0 ? first - 1 : last + 1)) + step));
    u.setCursor({ left: u.valToPos(u.data[0][next], "x"), top: 10 });
  });
  const self = {
    get plot() { return u; },
    redraw: () => u?.redraw(false, false),
    restyle() { for (const one of names.querySelectorAll("canvas")) one.repaint(); u?.redraw(false, true); },
    fit: (width = box.clientWidth) => { if (u && width > 60) u.setSize({ width, height: height() }); },
    // New data: keeps the zoom, and the choice of lines if they are the same.
    update(next) {
      const kept = u && !back.hidden ? { min: u.scales.x.min, max: u.scales.x.max } : null;
      const same = JSON.stringify(next.lines?.map((line) => line.name)) === JSON.stringify(data.lines?.map((line) => line.name));
      if (!same) hidden = new Set();
      data = next;
      u?.destroy();
      build();
      legend();
      hidden.forEach((i) => { for (let k = 0; k < (data.lines[i].low ? 3 : 1); k += 1) u.setSeries(places[i] + k, { show: false }); });
      if (kept) u.setScale("x", kept);
    },
    close() { u?.destroy(); drawn.delete(self); watch.disconnect(); },
  };
  const watch = new ResizeObserver(() => { if (box.clientWidth > 60) { if (u === null) build(); else if (u.width !== box.clientWidth) self.fit(); } });
  legend();
  watch.observe(box);
  drawn.add(self);
  figure.chart = self;
  return self;
}

function restyle() { theme = null; for (const one of drawn) one.restyle(); }
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", restyle);
// On paper: light colours, and the width that a column has there.
addEventListener("beforeprint", () => { document.documentElement.dataset.print = ""; restyle(); for (const one of drawn) one.fit(330); });
addEventListener("afterprint", () => { delete document.documentElement.dataset.print; restyle(); for (const one of drawn) one.fit(); });
