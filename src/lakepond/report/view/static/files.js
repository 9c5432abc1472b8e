// Segments, files of rows, checksums, uploads.

import { bytes, count, get, h, note, number, row, table, ago, keepWriter } from "/static/dom.js";

const PAGE = 200;

export async function files(main, { lake, words, signal }) {
  const commit = words.commit ?? lake.newest.number;
  const [steps, rows, uploads] = await Promise.all([
    get("files", { commit, kind: "steps" }, signal), get("files", { commit, kind: "rows" }, signal), get("uploads", { commit }, signal)]);
  const states = new Map(), shown = { steps, rows }, parts = { steps: h("div"), rows: h("div") };
  const draw = (kind) => parts[kind].replaceChildren(filesTable(kind, shown[kind], states, turn));
  async function turn(kind, offset) {
    shown[kind] = await get("files", { commit, kind, offset }, signal);
    draw(kind);
  }
  const again = () => Object.keys(shown).forEach(draw);
  again();
  main.replaceChildren(h("div", { class: "stack" },
    h("div", {}, h("h1", {}, "Files"), h("p", { class: "quiet" }, `The files of commit ${commit}. A file is named by the checksum of its content and never changes.`)),
    checker(commit, states, again, signal),
    uploadsPart(uploads),
    h("section", {}, h("div", { class: "head" }, h("h2", {}, "Steps"), h("p", { class: "quiet small" }, `${count(steps.of)} segments`)), parts.steps),
    h("section", {}, h("div", { class: "head" }, h("h2", {}, "Rows"), h("p", { class: "quiet small" }, `${count(rows.of)} files`)), parts.rows)));
}

function filesTable(kind, info, states, turn) {
  const heads = kind === "steps"
    ? ["File", "#First step", "#Steps", "#On disk", "#Row files it needs", "Checked"]
    : ["File", "#Leaf", "#First row", "#Rows", "#Uncompressed", "#On disk", "#Times smaller", "Checked"];
  const lines = info.files.map((file) => row([
    h("code", { title: file.file }, `${file.file.slice(0, 12)}…${file.file.slice(file.file.lastIndexOf("."))}`),
    ...(kind === "steps"
      ? [count(file.first), count(file.steps), bytes(file.bytes), count(file.needs)]
      : [String(file.leaf), count(file.first), count(file.rows), bytes(file.bytes_plain), bytes(file.bytes), number(Math.round((10 * file.bytes_plain) / file.bytes) / 10)]),
    state(states.get(file.file))], heads));
  const from = info.offset + 1, to = info.offset + info.files.length;
  return h("div", {},
    table(`files of ${kind}`, heads, lines, { label: `Files of ${kind}, newest first` }),
    info.of > PAGE ? h("p", { class: "pager" },
      h("button", { disabled: info.offset === 0, onclick: () => turn(kind, Math.max(0, info.offset - PAGE)) }, "Newer"),
      h("button", { disabled: to >= info.of, onclick: () => turn(kind, info.offset + PAGE) }, "Older"),
      h("span", { class: "quiet small" }, `${count(from)}–${count(to)} of ${count(info.of)}`)) : null);
}

const STATES = { intact: ["good", "intact"], broken: ["bad", "broken"], elsewhere: ["quiet", "in the cloud"] };
const state = (info) => { const [kind, text] = STATES[info] ?? ["quiet", "–"]; return h("span", { class: kind }, text); };

function checker(commit, states, again, signal) {
  const button = h("button", { class: "main", onclick: run }, "Verify checksums");
  const bar = h("progress", { max: 1, value: 0, "aria-label": "Checked", hidden: true });
  const said = h("p", { class: "quiet small", role: "status", "aria-live": "polite" }, "Reads all files of this commit and compares them with their checksums, like the command lakepond verify.");
  const bad = h("div", { class: "stack" });
  async function run() {
    button.disabled = true;
    bar.hidden = false;
    bad.replaceChildren();
    let checked = 0, broken = 0, away = 0, of = 0;
    try {
      const answer = await fetch(`/api/${keepWriter(`verify?commit=${commit}`)}`, { signal });
      if (!answer.ok) throw new Error((await answer.json()).error);
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { done, value } = await reader.read();
        if (done) break;
        const lines = (rest + value).split("\n");
        rest = lines.pop();
        for (const line of lines.map((text) => JSON.parse(text))) {
          if (line.files !== undefined) { of = line.files; continue; }
          checked += 1;
          states.set(line.file, line.state);
          if (line.state === "elsewhere") away += 1;
          if (line.error) { broken += 1; bad.append(note(line.error, "bad")); }
          bar.max = Math.max(1, line.of); bar.value = line.done;
          said.textContent = `${count(checked)} of ${count(of)} files, ${bytes(line.done)} of ${bytes(line.of)}`;
        }
      }
      said.textContent = checked < of ? `Stopped after ${count(checked)} of ${count(of)} files.` : broken ? `${count(broken)} of ${count(of)} files are broken; the command lakepond repair returns to the newest intact commit.` : `All ${count(of - away)} files are intact.${away ? ` ${count(away)} more are only in the cloud and were not read.` : ""}`;
    } catch (error) {
      if (error.name === "AbortError") return;
      said.textContent = error.message;
    }
    button.disabled = false;
    again();
  }
  return h("section", {}, h("div", { class: "head" }, h("h2", {}, "Checksums"), button), bar, said, bad);
}

function uploadsPart(info) {
  const heads = ["Destination", "#Files of this commit", "#Size", "#Only there", "Last change"];
  const rows = info.places.map((place) => row([
    h("code", {}, place.place), `${count(place.files)} of ${count(place.files_of)}`, `${bytes(place.bytes)} of ${bytes(place.bytes_of)}`,
    place.only_there ? `${count(place.only_there)} files, ${bytes(place.only_there_bytes)}` : "none", ago(new Date(place.changed * 1000).toISOString())], heads));
  const last = info.last_push;
  const pushed = !last ? null : last.error
    ? note(`The last push to ${last.place} failed ${ago(new Date(last.time * 1000).toISOString())}: ${last.error}`, "bad")
    : h("p", { class: "quiet small" }, `Last pushed to ${last.place} ${ago(new Date(last.time * 1000).toISOString())}.`);
  return h("section", {}, h("h2", {}, "Uploads"), info.places.length
    ? table("Uploads", heads, rows, { tall: false })
    : h("p", { class: "quiet" }, "This lake has not been pushed from this machine."), pushed);
}
