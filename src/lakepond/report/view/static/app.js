// The frame of the page: which page, which commit, what is new, what went wrong.

import { get, h, note, ago, bytes, count } from "/static/dom.js";
import { overview } from "/static/overview.js";
import { episodes } from "/static/episodes.js";
import { values } from "/static/values.js";
import { rows } from "/static/rows.js";
import { files } from "/static/files.js";

const PAGES = { overview, episodes, values, rows, files };
const main = document.getElementById("main");
const notice = document.getElementById("notice");
const chooser = document.getElementById("commit");
let leaving = new AbortController();
let lake = null, shown = null, later = null;

function address() {
  const [name, query = ""] = location.hash.replace(/^#\//, "").split("?");
  return { name: PAGES[name] ? name : "overview", words: Object.fromEntries(new URLSearchParams(query)) };
}

export function go(name, words) {
  const kept = Object.entries(words).filter(([, value]) => value !== null && value !== undefined && value !== "");
  location.hash = `#/${name}?${new URLSearchParams(kept)}`;
}

// Changes the address without a new page: where one is in an episode, say.
export function remember(name, words) {
  const kept = Object.entries(words).filter(([, value]) => value !== null && value !== undefined && value !== "");
  history.replaceState(null, "", `#/${name}?${new URLSearchParams(kept)}`);
}

async function show() {
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  const { name, words } = address();
  for (const link of document.querySelectorAll("#nav a")) {
    const target = link.getAttribute("href").split("?")[0];
    link.setAttribute("href", words.commit ? `${target}?commit=${words.commit}` : target);
    if (target === `#/${name}`) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
  }
  delete main.dataset.ready;
  document.title = `${name[0].toUpperCase()}${name.slice(1)} · ${lake?.name ?? "lake"} · lakepond`;
  try {
    lake = await get("lake", {}, signal);
    tellLake(words.commit);
    if (lake.newest === null) {
      main.replaceChildren(empty());
    } else {
      shown = words.commit ? null : lake.newest.number;
      await PAGES[name](main, { lake, words, signal, go, remember });
    }
  } catch (error) {
    if (error.name === "AbortError") return;
    main.replaceChildren(h("h1", {}, "This cannot be shown"), note(error.message, "bad"),
      h("p", { class: "controls" }, h("button", { onclick: show }, "Try again"),
        words.commit ? h("a", { href: `#/${name}` }, "Go to the newest commit") : null));
  }
  if (!signal.aborted) main.dataset.ready = name;
}

function empty() {
  if (lake.problems.length) {
    return h("div", { class: "stack" }, h("h1", {}, "No commit of this lake is whole"),
      h("p", {}, "Nothing is lost that is still on the disk: ", h("code", {}, `lakepond repair ${lake.path}`), " moves what is broken aside and deletes nothing."));
  }
  return h("div", { class: "stack" }, h("h1", {}, "This lake is empty"),
    h("p", { class: "quiet" }, "Nothing has been committed yet. The page shows the first commit as soon as it is there."));
}

function tellLake(wanted) {
  const label = lake.name === "lake" && lake.run ? `${lake.run} / lake` : lake.name;
  document.getElementById("lake-name").textContent = label;
  document.getElementById("lake-name").title = lake.path;
  const about = lake.newest ? `${count(lake.newest.steps)} steps, ${bytes(lake.newest.bytes)}, last commit ${ago(lake.newest.time)}. ` : "";
  document.getElementById("foot").textContent = `${about}Read-only, from this machine alone. lakepond ${lake.version}`;
  notice.replaceChildren(...lake.problems.slice(0, 3).map((problem) => note(problem.error[0].toUpperCase() + problem.error.slice(1), "bad")));
  if (lake.problems.length && lake.newest) notice.append(note(`The page shows commit ${lake.newest.number}, the newest that is whole.`));
  chooser.disabled = lake.newest === null;
  fillChooser(wanted);
}

function fillChooser(wanted) {
  const newest = lake.newest?.number;
  const options = [h("option", { value: "" }, newest === undefined ? (lake.problems.length ? "none whole" : "none yet") : `${newest} (newest)`)];
  if (wanted && Number(wanted) !== newest) options.push(h("option", { value: wanted }, wanted));
  chooser.replaceChildren(...options);
  chooser.value = wanted && Number(wanted) !== newest ? wanted : "";
  chooser.filled = false;
}

// The other commits are asked for when somebody looks for them.
async function offerCommits() {
  if (chooser.filled || !lake?.newest) return;
  chooser.filled = true;
  const kept = chooser.value;
  const told = await get("commits");
  for (const commit of told.commits) {
    if (commit.number === lake.newest.number || String(commit.number) === kept) continue;
    chooser.append(h("option", { value: commit.number, disabled: Boolean(commit.error) }, commit.error ? `${commit.number} (broken)` : `${commit.number}, ${count(commit.steps)} steps`));
  }
}

chooser.addEventListener("focus", () => offerCommits().catch(() => { chooser.filled = false; }));
chooser.addEventListener("change", () => {
  const { name, words } = address();
  go(name, name === "episodes" ? { only: words.only, order: words.order, commit: chooser.value } : { ...words, commit: chooser.value });
});

// A running writer goes on: say so, and let the reader choose when to look.
async function look() {
  clearTimeout(later);
  if (!document.hidden && lake) {
    try {
      const now = await get("lake");
      if (lake.newest === null && now.newest !== null) { await show(); }
      else if (shown !== null && now.newest && now.newest.number !== shown && !notice.querySelector("[data-new]")) {
        const button = h("button", { onclick: () => show() }, "Show it");
        notice.append(h("p", { class: "note plain", "data-new": "" }, `Commit ${now.newest.number} is there, with ${count(now.newest.recorded - lake.newest.recorded)} new steps. `, button));
      }
    } catch (error) { /* told by the next thing that is asked for */ }
  }
  later = setTimeout(look, 2500);
}

window.addEventListener("hashchange", () => { show().then(() => { if (document.activeElement === document.body) main.focus(); }); });
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });
show().then(look);
