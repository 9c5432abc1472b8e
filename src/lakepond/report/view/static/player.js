// One episode: a screen that shows the observation of a step, and the controls to move from step to step.

import { count, figure, get, h, note, number, s, select } from "/static/dom.js";
import { chart } from "/static/charts.js";
import { windowScreen } from "/static/market.js";
import { latest, pictureScreen, vectorScreen } from "/static/screens.js";

const SPEEDS = [[4, "4 per second"], [12, "12 per second"], [30, "30 per second"], [60, "60 per second"]];

const icon = (d) => s("svg", { width: 16, height: 16, viewBox: "0 0 16 16", "aria-hidden": "true" }, s("path", { class: "icon", d }));

export async function player(place, { commit, key, at, spec, signal, beside, remember }) {
  const info = await get("episode", { commit, ...key }, signal);
  const first = at ?? info.trades?.[0]?.at ?? 0;  // a market opens at its first trade
  const now = { at: Math.min(Math.max(0, first), info.steps - 1), leaf: 0, playing: null, speed: 12 };
  const question = (more) => ({ commit, ...key, ...more });
  const context = { spec, info, question, signal, now, move };
  let screen = null;

  const slider = h("input", { type: "range", min: 0, max: info.steps - 1, value: now.at, id: "scrub", "aria-label": "Step of the episode", oninput: () => move(Number(slider.value)) });
  const output = h("output", { for: "scrub" });
  const buttons = {
    first: h("button", { onclick: () => move(0), "aria-label": "First step", title: "First step (Home)" }, icon("M3 2v12M13 2v12L5 8z")),
    back: h("button", { onclick: () => move(now.at - 1), "aria-label": "One step back", title: "One step back (←)" }, icon("M11 2v12L3 8z")),
    play: h("button", { class: "main", onclick: play, "aria-label": "Play", title: "Play (space)" }, "Play"),
    on: h("button", { onclick: () => move(now.at + 1), "aria-label": "One step forward", title: "One step forward (→)" }, icon("M5 2v12l8-6z")),
    last: h("button", { onclick: () => move(info.steps - 1), "aria-label": "Last step", title: "Last step (End)" }, icon("M13 2v12M3 2v12l8-6z")),
  };
  const facts = h("dl", { class: "now" });
  const body = h("div", {}), more = h("div", {});
  const curve = figure("Return and reward", "Cumulative return and reward of each step. Click to go to a step.");
  const steps = { x_name: "step", unit: "", xs: [info.at.map((k) => k + 1)], lines: [{ name: "return so far", xs: 0, y: info.return, colour: 0 }, { name: "reward", xs: 0, y: info.reward, colour: 1 }] };
  chart(curve, steps, { height: 170, share: "episode steps", now: () => now.at + 1, pick: (x) => move(x - 1) });

  function move(to) {
    const next = Math.min(Math.max(0, to), info.steps - 1);
    if (next === now.at && screen?.shown) return;
    now.at = next;
    slider.value = String(next);
    slider.setAttribute("aria-valuetext", `step ${next + 1} of ${info.steps}`);
    output.textContent = `step ${count(next + 1)} of ${count(info.steps)}`;
    buttons.first.disabled = buttons.back.disabled = next === 0;
    buttons.last.disabled = buttons.on.disabled = next === info.steps - 1;
    screen?.show(next);
    curve.chart.redraw();
    tellStep(next);
  }

  const tellStep = latest((at) => get("step", question({ at }), signal), (answer) => {
    facts.replaceChildren(...stepFacts(answer).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
    if (now.playing === null) remember(answer.at);
  }, (error) => facts.replaceChildren(note(error.message, "bad")));

  function play() {
    if (now.playing !== null) { clearInterval(now.playing); now.playing = null; remember(now.at); }
    else {
      if (now.at === info.steps - 1) move(0);
      now.playing = setInterval(() => {
        if (screen.busy?.()) return;
        if (now.at >= info.steps - 1) play(); else move(now.at + 1);
      }, 1000 / now.speed);
    }
    const going = now.playing !== null;
    buttons.play.textContent = going ? "Pause" : "Play";
    buttons.play.setAttribute("aria-label", going ? "Pause" : "Play");
  }

  function setLeaf(leaf) {
    now.leaf = leaf;
    const field = spec.observations[leaf];
    const make = { frames: pictureScreen, picture: pictureScreen, channels: pictureScreen, window: windowScreen }[field.kind] ?? vectorScreen;
    screen?.close?.();
    screen = make(context, field);
    body.replaceChildren(screen.element);
    more.replaceChildren(...(screen.more ? [screen.more] : []));
    screen.show(now.at);
  }

  function keys(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || /^(SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
    if (event.target.tagName === "INPUT" && event.target !== slider) return;
    const moves = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 };
    if (event.key in moves && event.target !== slider) { move(now.at + moves[event.key]); event.preventDefault(); }
    else if (event.key === "Home" && event.target !== slider) { move(0); event.preventDefault(); }
    else if (event.key === "End" && event.target !== slider) { move(info.steps - 1); event.preventDefault(); }
    else if (event.key === " " && event.target.tagName !== "BUTTON" && event.target.tagName !== "A") { play(); event.preventDefault(); }
    else if (event.key === "[") beside(-1);
    else if (event.key === "]") beside(1);
  }

  const observations = spec.observations.length > 1
    ? select("leaf", "Observation", spec.observations.map((field) => [field.leaf, field.path]), 0, (leaf) => setLeaf(Number(leaf))) : null;
  place.replaceChildren(
    h("div", {}, h("h2", {}, `Stream ${info.stream}, steps ${count(info.first)} to ${count(info.last)}`),
      h("p", { class: "quiet" }, `${count(info.steps)} steps, return ${number(info.total)}, ${info.end === "open" ? "still open" : info.end}`)),
    body,
    h("div", {}, slider, h("div", { class: "transport" }, buttons.first, buttons.back, buttons.play, buttons.on, buttons.last,
      select("speed", "", SPEEDS, now.speed, (n) => { now.speed = Number(n); if (now.playing !== null) { play(); play(); } }), output)),
    ...(observations ? [h("div", { class: "controls" }, observations)] : []),
    facts, h("div", { class: "charts" }, curve), more,
    h("p", { class: "keys" }, h("kbd", {}, "←"), " ", h("kbd", {}, "→"), " one step, ", h("kbd", {}, "Page up"), " ", h("kbd", {}, "Page down"), " ten steps, ",
      h("kbd", {}, "space"), " play, ", h("kbd", {}, "["), " ", h("kbd", {}, "]"), " previous and next episode"));
  place.querySelector("#speed").setAttribute("aria-label", "Speed");
  setLeaf(0);
  const start = now.at;
  now.at = -1;
  move(start);
  document.addEventListener("keydown", keys);
  const stop = () => { document.removeEventListener("keydown", keys); clearInterval(now.playing); screen?.close?.(); };
  signal.addEventListener("abort", stop, { once: true });
  return stop;
}

function stepFacts(answer) {
  const found = [["Step", count(answer.step)]];
  for (const [name, value] of Object.entries(answer.columns)) {
    if (name === "terminated" || name === "truncated") {
      if (value.numbers[0]) found.push([name, "yes"]);
    } else found.push([name, value.of <= 12 ? value.numbers.map((x) => (typeof x === "string" ? x : number(x))).join(", ") : `${count(value.of)} numbers`]);
  }
  return found;
}
