// The frame of the page: the page and commit shown, updates, errors.

import { get, h, keepWriter, note, query, ago, bytes, count } from "/static/dom.js";
import { training } from "/static/training.js";
import { overview } from "/static/overview.js";
import { episodes } from "/static/episodes.js";
import { values } from "/static/values.js";
import { rows } from "/static/rows.js";
import { files } from "/static/files.js";

const PAGES = { overview, training, episodes, values, rows, files };
const main = document.getElementById("main");
const notice = document.getElementById("notice");
const chooser = document.getElementById("commit");
const writers = document.getElementById("writer");
let leaving = new AbortController();
let lake = null, shown = null, later = null, refresh = null;

// The address that was printed holds the token; the cookie has it now, and it need not stay in the history.
if (location.search) history.replaceState(null, "", location.pathname + location.hash);

function address() {
  const [name, words = ""] = location.hash.replace(/^#\//, "").split("?");
  return { name: PAGES[name] ? name : "overview", words: Object.fromEntries(new URLSearchParams(words)) };
}

const hashOf = (name, words) => keepWriter(`#/${name}?${query(words)}`);
const go = (name, words) => { location.hash = hashOf(name, words); };
// Changes the address without a new page: the position in an episode, say.
const remember = (name, words) => history.replaceState(null, "", hashOf(name, words));

async function show() {
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  const { name, words } = address();
  for (const link of document.querySelectorAll("#nav a")) {
    const target = link.getAttribute("href").split("?")[0];
    link.setAttribute("href", keepWriter(words.commit ? `${target}?commit=${words.commit}` : target));
    if (target === `#/${name}`) {
      link.setAttribute("aria-current", "page");
      link.scrollIntoView({ block: "nearest", inline: "center" });  // the list scrolls on narrow screens
    } else link.removeAttribute("aria-current");
  }
  delete main.dataset.ready;
  refresh = null;
  document.title = `${name[0].toUpperCase()}${name.slice(1)} · ${lake?.name ?? "lake"} · lakepond`;
  try {
    lake = await get("lake", {}, signal);
    tellLake(words.commit);
    if (lake.newest === null && !(lake.training && name === "training")) {
      main.replaceChildren(empty());
    } else {
      shown = words.commit || !lake.newest ? null : lake.newest.number;
      refresh = (await PAGES[name](main, { lake, words, signal, go, remember })) ?? null;
    }
  } catch (error) {
    if (error.name === "AbortError") return;
    main.replaceChildren(h("h1", {}, "This page cannot be shown"), note(error.message, "bad"),
      h("p", { class: "controls" }, h("button", { onclick: show }, "Try again"),
        words.commit ? h("a", { href: `#/${name}` }, "Go to the newest commit") : null));
  }
  if (!signal.aborted) main.dataset.ready = name;
}

function empty() {
  if (lake.problems.length) {
    return h("div", { class: "stack" }, h("h1", {}, "No commit of this lake is intact"),
      h("p", {}, h("code", {}, `lakepond repair ${lake.path}`), " restores what can be read; it moves broken files to another folder and deletes nothing."));
  }
  return h("div", { class: "stack" }, h("h1", {}, "This lake is empty"),
    h("p", { class: "quiet" }, "Nothing has been committed yet. The page shows the first commit as soon as it exists."));
}

function tellLake(wanted) {
  const label = lake.name === "lake" && lake.run ? `${lake.run} / lake` : lake.name;
  document.getElementById("lake-name").textContent = label;
  document.getElementById("lake-name").title = lake.path;
  const about = lake.newest ? `${count(lake.newest.steps)} steps, ${bytes(lake.newest.bytes)}, last commit ${ago(lake.newest.time)}. ` : "";
  document.getElementById("foot").textContent = `${about}Read-only. lakepond ${lake.version}`;
  notice.replaceChildren(...lake.problems.slice(0, 3).map((problem) => note(problem.error[0].toUpperCase() + problem.error.slice(1), "bad")));
  if (lake.problems.length && lake.newest) notice.append(note(`The page shows commit ${lake.newest.number}, the newest that is intact.`));
  document.querySelector("#nav a[href^='#/training']").hidden = !lake.training;
  chooser.disabled = lake.newest === null;
  writers.parentElement.hidden = lake.writers.length < 2;
  writers.replaceChildren(...lake.writers.map((name) => h("option", { value: name }, name || "without a name")));
  writers.value = lake.writer;
  fillChooser(wanted);
}

function fillChooser(wanted) {
  const newest = lake.newest?.number;
  const options = [h("option", { value: "" }, newest === undefined ? (lake.problems.length ? "none intact" : "none yet") : `${newest} (newest)`)];
  if (wanted && Number(wanted) !== newest) options.push(h("option", { value: wanted }, wanted));
  chooser.replaceChildren(...options);
  chooser.value = wanted && Number(wanted) !== newest ? wanted : "";
  chooser.filled = false;
}

// The other commits are requested when the list is opened.
async function offerCommits() {
  if (chooser.filled || !lake?.newest) return;
  chooser.filled = true;
  const kept = chooser.value;
  const info = await get("commits");
  for (const commit of info.commits) {
    if (commit.number === lake.newest.number || String(commit.number) === kept) continue;
    chooser.append(h("option", { value: commit.number, disabled: Boolean(commit.error) }, commit.error ? `${commit.number} (broken)` : `${commit.number}, ${count(commit.steps)} steps`));
  }
}

chooser.addEventListener("focus", () => offerCommits().catch(() => { chooser.filled = false; }));
chooser.addEventListener("change", () => {
  const { name, words } = address();
  go(name, name === "episodes" ? { only: words.only, order: words.order, commit: chooser.value } : { ...words, commit: chooser.value });
});

// Commits and episodes are those of one writer, so another writer starts without them.
writers.addEventListener("change", () => { location.hash = `#/${address().name}?${new URLSearchParams({ writer: writers.value })}`; });

// Follows a running training: pages that can refresh do so, others say that there is a new commit.
async function look() {
  clearTimeout(later);
  if (!document.hidden && lake) {
    try {
      const now = await get("lake");
      if (lake.newest === null && now.newest !== null) { await show(); }
      else if (refresh && !address().words.commit) {
        const fresh = now.newest && now.newest.number !== lake.newest?.number;
        if (fresh) { lake = now; shown = now.newest.number; tellLake(); }
        await refresh(lake, fresh);
      } else if (shown !== null && now.newest && now.newest.number !== shown && !notice.querySelector("[data-new]")) {
        const button = h("button", { onclick: () => show() }, "Show it");
        notice.append(h("p", { class: "note plain", "data-new": "" }, `New commit ${now.newest.number} with ${count(now.newest.recorded - lake.newest.recorded)} more steps. `, button));
      }
    } catch (error) { /* the next request of the page reports it */ }
  }
  later = setTimeout(look, 2500);
}

window.addEventListener("hashchange", () => { show().then(() => { if (document.activeElement === document.body) main.focus(); }); });
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });
show().then(look);
