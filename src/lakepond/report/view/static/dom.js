// Small things that every page uses: making elements, asking the server, writing numbers for people.

const SVG = "http://www.w3.org/2000/svg";

export function h(tag, attributes = {}, ...children) {
  return fillIn(document.createElement(tag), attributes, children);
}

export function s(tag, attributes = {}, ...children) {
  return fillIn(document.createElementNS(SVG, tag), attributes, children);
}

function fillIn(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in { value: 1, checked: 1, disabled: 1, htmlFor: 1 }) element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(9).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export class Refused extends Error {}

// One question; an answer that is not wanted any more is let go of through `signal`.
export async function get(name, words = {}, signal = undefined) {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(words)) {
    if (value !== null && value !== undefined && value !== "") query.set(key, value);
  }
  let answer;
  try {
    answer = await fetch(`/api/${name}?${query}`, { signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused("The server does not answer; is `lakepond view` still running?");
  }
  if (answer.headers.get("Content-Type") === "image/png") return answer.blob();
  const told = await answer.json();
  if (!answer.ok) throw new Refused(told.error);
  return told;
}

const whole = new Intl.NumberFormat("en");
export const count = (n) => (n === null || n === undefined ? "–" : whole.format(n));

export function short(n) {
  if (n === null || n === undefined) return "–";
  const size = Math.abs(n);
  if (size >= 1e9) return trim(n / 1e9) + "B";
  if (size >= 1e6) return trim(n / 1e6) + "M";
  if (size >= 1e4) return trim(n / 1e3) + "k";
  return number(n);
}

const trim = (x) => String(Number(x.toPrecision(Math.abs(x) >= 100 ? 4 : 3)));

export function number(x) {
  if (x === null || x === undefined) return "–";
  if (Number.isInteger(x)) return whole.format(x);
  const size = Math.abs(x);
  if (size >= 1e3 && size < 1e9) return whole.format(Math.round(x));
  if (size >= 1e9 || size < 1e-4) return x.toExponential(2).replace("e+", "e");
  return String(Number(x.toPrecision(4)));
}

export function bytes(n) {
  if (n === null || n === undefined) return "–";
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let k = 0;
  while (n >= 1000 && k < units.length - 1) { n /= 1000; k += 1; }
  return `${k === 0 ? n : n < 10 ? n.toFixed(2) : n < 100 ? n.toFixed(1) : n.toFixed(0)} ${units[k]}`;
}

export function seconds(x) {
  if (x < 1) return `${Math.round(x * 1000)} ms`;
  if (x < 120) return `${x.toFixed(1)} s`;
  return x < 7200 ? `${Math.round(x / 60)} min` : `${(x / 3600).toFixed(1)} h`;
}

export function ago(iso) {
  const past = (Date.now() - new Date(iso)) / 1000;
  if (!(past >= 0)) return when(iso);
  if (past < 60) return "just now";
  if (past < 3600) return `${Math.floor(past / 60)} min ago`;
  if (past < 86400) return `${Math.floor(past / 3600)} h ago`;
  return `${count(Math.floor(past / 86400))} d ago`;
}

const clock = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "medium" });
export const when = (iso) => (Number.isNaN(Date.parse(iso)) ? iso : clock.format(new Date(iso)));

export const note = (text, kind = "") => h("p", { class: `note ${kind}` }, text);

export function facts(pairs) {
  return h("dl", { class: "facts" }, pairs.map(([name, value, more]) =>
    h("div", {}, h("dt", {}, name), h("dd", {}, value, more ? h("small", {}, more) : null))));
}

export function table(heads, rows, label) {
  const head = heads.map((name) => h("th", { scope: "col", class: name.startsWith("#") ? "n" : null }, name.replace("#", "")));
  return h("table", { "aria-label": label }, h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows));
}

export function row(cells, heads, attributes = {}) {
  return h("tr", attributes, cells.map((cell, i) => h("td", { class: heads[i].startsWith("#") ? "n" : null }, cell)));
}

export function select(id, label, options, value, onchange) {
  const box = h("select", { id, onchange: (event) => onchange(event.target.value) },
    options.map(([key, text]) => h("option", { value: String(key), selected: String(key) === String(value) }, text)));
  if (!label) return box;
  return h("span", {}, h("label", { for: id }, label), box);
}
