// Numbers as text, by the rules of lakepond/formats.py: a value reads the same here, in a report and in the terminal.

const grouped = new Intl.NumberFormat("en");
const three = (x) => { const rounded = Number(x.toPrecision(3)); return Math.abs(rounded) >= 1000 ? grouped.format(Math.round(x)) : String(rounded); };

export const count = (n) => (n === null || n === undefined ? "–" : grouped.format(n));

export function number(x) {
  if (x === null || x === undefined || !Number.isFinite(x)) return "–";
  const size = Math.abs(x);
  if (Number.isInteger(x) && size < 1e15) return grouped.format(x);
  if (size >= 1e7 || size < 1e-3) return x.toExponential(2).replace(/\.?0*e\+?/, "e");
  return size >= 1000 ? grouped.format(Math.round(x)) : String(Number(x.toPrecision(4)));
}

export function short(x) {
  if (x === null || x === undefined) return "–";
  const size = Math.abs(x);
  return size >= 1e9 ? `${three(x / 1e9)}B` : size >= 1e6 ? `${three(x / 1e6)}M` : size >= 1e3 ? `${three(x / 1e3)}k` : number(x);
}

export function bytes(n) {
  if (n === null || n === undefined) return "–";
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let k = 0;
  while (Math.abs(n) >= 999.5 && k < units.length - 1) { n /= 1000; k += 1; }
  return `${k === 0 ? Math.round(n) : three(n)} ${units[k]}`;
}

const LENGTHS = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
export function seconds(x) {
  if (x === null || x === undefined) return "–";
  if (x <= 0) return "0 s";
  if (x < 0.9995) return `${three(1000 * x)} ms`;
  if (x < 59.95) return `${three(x)} s`;
  const larger = LENGTHS.findIndex(([, length]) => Math.round(x) >= length), least = LENGTHS[larger + 1][1], parts = [];
  let left = Math.round(x / least) * least;
  for (const [unit, length] of LENGTHS) if (left >= length) { parts.push(`${Math.floor(left / length)} ${unit}`); left %= length; }
  return parts.join(" ");
}

export function percent(x) {
  if (x === null || x === undefined) return "–";
  const text = Math.abs(x) >= 100 || Number.isInteger(x) ? x.toFixed(0) : x.toFixed(1);
  return `${Number(text) === 0 ? "0" : text} %`;
}

export const date = (t) => new Date(t * 1000).toISOString().slice(0, 10);
export const UNITS = { "": number, bytes, seconds, percent };
export const AXES = { "": short, bytes, seconds, percent };
