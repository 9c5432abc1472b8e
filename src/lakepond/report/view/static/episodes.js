// The list of episodes, and beside it the one that is shown.

import { count, get, h, note, number, row, select, sleep, table } from "/static/dom.js";
import { player } from "/static/player.js";

const PAGE = 50;
const ORDERS = [["newest", "newest first"], ["oldest", "oldest first"], ["best", "highest return"], ["worst", "lowest return"], ["longest", "longest"]];

export async function episodes(main, { words, signal, go, remember }) {
  const spec = await get("spec", { commit: words.commit }, signal);
  const list = h("div", { class: "list" });
  const place = h("div", { class: "player" }, h("p", { class: "quiet" }, "Choose an episode."));
  main.replaceChildren(h("div", { class: "stack" },
    h("div", { class: "head" }, h("h1", {}, "Episodes"), filters(words, go, signal)),
    h("div", { class: "split" }, list, place)));
  const state = { words: { ...words }, list, place, spec, signal, remember };
  const first = await fill(state);
  const wanted = words.first !== undefined ? { stream: Number(words.stream), first: Number(words.first), last: Number(words.last) } : first;
  if (wanted) await open(state, wanted, words.at === undefined ? null : Number(words.at));
  else if (!signal.aborted) place.replaceChildren(h("p", { class: "quiet" }, "There is no episode."));
}

function filters(words, go, signal) {
  const box = h("select", { id: "stream", onchange: (event) => go("episodes", { commit: words.commit, only: event.target.value, order: words.order }) },
    h("option", { value: "" }, "all"), words.only !== undefined ? h("option", { value: words.only, selected: true }, words.only) : null);
  get("streams", { commit: words.commit }, signal).then((info) => {
    for (const stream of info.streams) {
      if (String(stream.stream) !== words.only) box.append(h("option", { value: stream.stream }, String(stream.stream)));
    }
  }).catch(() => {});
  return h("div", { class: "controls" },
    h("span", {}, h("label", { for: "stream" }, "Stream"), box),
    select("order", "Order", ORDERS, words.order ?? "newest", (order) => go("episodes", { commit: words.commit, only: words.only, order })));
}

async function ask(state) {
  const { commit, only: stream, order, offset = 0 } = state.words;
  state.info = await get("episodes", { commit, stream, order, offset, limit: PAGE }, state.signal);
  drawList(state, Number(offset));
  return state.info.progress.done || state.info.progress.error;
}

// Draws the list; returns an episode to show as soon as one is known, while the list is updated until all are.
async function fill(state) {
  let complete = await ask(state);
  for (; !complete && !state.info.episodes.length; complete = await ask(state)) await sleep(400);
  if (!complete) keepCounting(state, state.words.offset);
  return state.info.episodes.find((one) => one.end !== "open") ?? state.info.episodes[0];
}

async function keepCounting(state, offset) {
  try {
    do await sleep(700); while (!state.signal.aborted && state.words.offset === offset && !await ask(state));
  } catch (error) { if (error.name !== "AbortError") state.list.append(note(error.message, "bad")); }
}

function drawList(state, offset) {
  const { info, list } = state;
  const heads = ["Stream", "#First step", "#Steps", "#Return", "End"];
  const rows = info.episodes.map((episode) => {
    const on = state.open && state.open.stream === episode.stream && state.open.first === episode.first;
    const show = (event) => { event.preventDefault(); open(state, episode, null); };
    return row([
      String(episode.stream),
      h("a", { href: `#/episodes?stream=${episode.stream}&first=${episode.first}&last=${episode.last}`, onclick: show, "aria-label": `Episode of stream ${episode.stream} from step ${episode.first}`, "aria-current": on ? "true" : null }, count(episode.first)),
      count(episode.steps), number(episode.total), episode.end],
    heads, { class: on ? "on" : null, "data-go": "", onclick: (event) => { if (event.target.tagName !== "A") show(event); } });
  });
  const p = info.progress, to = offset + info.episodes.length;
  const focused = document.activeElement?.getAttribute?.("aria-label");
  list.replaceChildren(
    ...[p.error ? note(p.error, "bad") : null,
      !p.done && !p.error ? h("p", { class: "quiet small" }, `${count(p.steps)} of ${count(p.of)} steps read `, h("progress", { max: p.of, value: p.steps, "aria-label": "Episodes found" })) : null,
      table("Episodes", heads, rows),
      h("p", { class: "pager" },
        h("button", { disabled: offset === 0, onclick: () => turn(state, offset - PAGE) }, "Previous"),
        h("button", { disabled: to >= info.of, onclick: () => turn(state, offset + PAGE) }, "Next"),
        h("span", { class: "quiet small" }, info.of ? `${count(offset + 1)}–${count(to)} of ${count(info.of)}` : "none")),
      p.dropped ? h("p", { class: "quiet small" }, `The oldest ${count(p.dropped)} episodes are not listed.`) : null].filter(Boolean));
  if (focused) list.querySelector(`[aria-label="${focused}"]`)?.focus();
}

async function turn(state, offset) {
  state.words.offset = Math.max(0, offset);
  await fill(state);
}

async function open(state, episode, at) {
  state.open = episode;
  drawList(state, Number(state.words.offset ?? 0));
  state.stop?.();
  const { words } = state;
  const base = { commit: words.commit, only: words.only, order: words.order, offset: words.offset };
  const key = { stream: episode.stream, first: episode.first, last: episode.last };
  state.remember("episodes", { ...base, ...key, at: at ?? "" });
  const beside = (step) => {
    const list = state.info.episodes;
    const i = list.findIndex((other) => other.stream === state.open.stream && other.first === state.open.first);
    const next = i < 0 ? null : list[i + step];
    if (next) open(state, next, null);
  };
  try {
    state.stop = await player(state.place, {
      commit: words.commit, key, at, spec: state.spec, signal: state.signal, beside,
      remember: (now) => state.remember("episodes", { ...base, ...key, at: now }),
    });
  } catch (error) {
    if (error.name !== "AbortError") state.place.replaceChildren(note(error.message, "bad"));
  }
}
