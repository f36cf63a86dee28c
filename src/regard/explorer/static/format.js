// Numbers, tokens and counts as people read them.

/** A weight or a score: four digits that matter, small ones with their power of ten. */
export function number(x, digits = 4) {
  if (x === null || x === undefined) return "–";
  if (x === Infinity) return "∞";
  if (x === -Infinity) return "−∞";
  if (Number.isNaN(x)) return "not a number";
  const size = Math.abs(x);
  if (size === 0) return "0";
  if (size < 10 ** -digits || size >= 1e6)
    return minus(x.toExponential(1)).replace(/e([+−-]?)(\d+)/, (_, sign, n) => `·10${raised(sign, n)}`);
  return minus(size >= 1000 ? x.toFixed(1) : x.toFixed(digits));
}

/** The same for a narrow column: −5e−4. */
export function brief(x, digits) {
  const size = Math.abs(x);
  const hasPower = Number.isFinite(x) && size > 0 && (size < 10 ** -digits || size >= 1e5);
  return hasPower ? minus(x.toExponential(0).replace("+", "")) : number(x, digits);
}

function raised(sign, digits) {
  return (sign === "+" || sign === "" ? "" : "⁻") + [...digits].map((d) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[Number(d)]).join("");
}

function minus(text) {
  return text.replaceAll("-", "−");
}

/** A share as per cent. */
export function percent(x) {
  return x >= 0.0995 || x === 0 ? `${(100 * x).toFixed(0)} %` : `${(100 * x).toFixed(1)} %`;
}

/** A whole number with thin gaps between thousands. */
export function count(n) {
  return String(Math.round(n)).replace(/\B(?=(\d{3})+$)/g, "\u202f");
}

/** A number of tokens: in units of 1024, where it has them. */
export function power(n) {
  if (n >= 2 ** 20) return `${count(n / 2 ** 20)}M`;
  return n >= 1024 ? `${count(n / 1024)}k` : String(n);
}

/** A large quantity with a letter: 1.2 G. */
export function large(x, unit) {
  const names = ["", "k", "M", "G", "T", "P", "E"];
  const n = x > 0 ? Math.min(names.length - 1, Math.max(0, Math.floor(Math.log10(x) / 3))) : 0;
  return `${Number((x / 1000 ** n).toPrecision(3))} ${names[n]}${unit}`;
}

/** A duration. */
export function seconds(t) {
  if (t < 1e-3) return `${(1e6 * t).toPrecision(3)} µs`;
  if (t < 1) return `${Number((1e3 * t).toPrecision(3))} ms`;
  return `${Number(t.toPrecision(3))} s`;
}

/** A token with what cannot be seen made visible; a space in front is kept as a dot where it stands alone. */
export function visible(token) {
  const text = token.replace(/\n/g, "⏎").replace(/\t/g, "⇥");
  return /^ +$/.test(text) ? "·".repeat(text.length) : text;
}

/** The same without spaces around, for labels. */
export function label(token) {
  return visible(token).trim() || "·";
}

/** A token in marks, for sentences. */
export function quoted(token) {
  return `“${label(token)}”`;
}
