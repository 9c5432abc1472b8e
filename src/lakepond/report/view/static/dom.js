// What every page uses: elements, requests to the server, tables.

import { count } from "/static/numbers.js";

export * from "/static/numbers.js";

const SVG = "http://www.w3.org/2000/svg";

// The writer that the page shows: the part `writer=` of its address. Links and requests keep it.
export const writer = () => new URLSearchParams(location.hash.split("?")[1] ?? "").get("writer");

export function keepWriter(hash) {
  const name = writer();
  if (name === null || /[?&]writer=/.test(hash)) return hash;
  return `${hash}${hash.includes("?") ? "&" : "?"}${new URLSearchParams({ writer: name })}`;
}

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
    else if (name === "href" && value.startsWith("#/")) element.setAttribute(name, keepWriter(value));
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(9).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

// The fields of an address, without those that have no value.
export const query = (words) => new URLSearchParams(Object.entries(words).filter(([, value]) => value !== null && value !== undefined && value !== ""));

// One request; `signal` cancels it when its answer is no longer needed.
export async function get(name, words = {}, signal = undefined) {
  let answer;
  try {
    answer = await fetch(`/api/${keepWriter(`${name}?${query(words)}`)}`, { signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer. Is lakepond view still running?");
  }
  if (answer.headers.get("Content-Type") === "image/png") return answer.blob();
  const info = await answer.json();
  if (!answer.ok) throw new Error(info.error);
  return info;
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

// A table that scrolls by itself; "#" marks the head of a column of numbers.
export function table(name, heads, rows, { label = name, tall = true } = {}) {
  const head = heads.map((text) => h("th", { scope: "col", class: text.startsWith("#") ? "n" : null }, text.replace("#", "")));
  return h("div", { class: tall ? "scroll tall" : "scroll", tabindex: "0", role: "region", "aria-label": `Table of ${name.toLowerCase()}` },
    h("table", { "aria-label": label }, h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows)));
}

export function row(cells, heads, attributes = {}) {
  return h("tr", attributes, cells.map((cell, i) => h("td", { class: heads[i].startsWith("#") ? "n" : null }, cell)));
}

// A figure for `chart` of charts.js.
export function figure(title, caption = "") {
  return h("figure", { "aria-label": title }, h("h3", {}, title), h("figcaption", {}, caption));
}

export function select(id, label, options, value, onchange) {
  const box = h("select", { id, onchange: (event) => onchange(event.target.value) },
    options.map(([key, text]) => h("option", { value: String(key), selected: String(key) === String(value) }, text)));
  return label ? h("span", {}, h("label", { for: id }, label), box) : box;
}

export const sleep = (milliseconds) => new Promise((resume) => setTimeout(resume, milliseconds));
