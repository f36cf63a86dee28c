// Formatting of numbers, counts, durations and tokens for display. Every number on the page is formatted here.

/** A weight or a score with `digits` decimals; very small and very large numbers in scientific notation: 1.2·10⁻⁵. */
export function formatNumber(x, digits = 4) {
  if (x === null || x === undefined) return "–";
  if (x === Infinity) return "∞";
  if (x === -Infinity) return "−∞";
  if (Number.isNaN(x)) return "NaN";
  const size = Math.abs(x);
  if (size === 0) return "0";
  if (size < 10 ** -digits || size >= 1e6)
    return withMinusSign(x.toExponential(1)).replace(
      /e([+−-]?)(\d+)/,
      (_, sign, exponent) => `·10${superscript(sign, exponent)}`,
    );
  return formatFixed(x, size >= 1000 ? 1 : digits);
}

/** A number for a narrow column: −5e−4 instead of −5.0·10⁻⁴. */
export function formatNumberShort(x, digits) {
  const size = Math.abs(x);
  const isScientific = Number.isFinite(x) && size > 0 && (size < 10 ** -digits || size >= 1e5);
  return isScientific ? withMinusSign(x.toExponential(0).replace("+", "")) : formatNumber(x, digits);
}

/** A number with a fixed number of decimals. */
export function formatFixed(x, digits) {
  return withMinusSign(x.toFixed(digits));
}

/** An integer without decimals, any other number with four. */
export function formatIntegerOrNumber(x) {
  return Number.isInteger(x) && Math.abs(x) < 1e6 ? withMinusSign(String(x)) : formatNumber(x, 4);
}

/** A weight inside a map cell: .25, and a dot below 0.005. */
export function formatCellWeight(x) {
  const size = Math.abs(x);
  if (size < 0.005) return "·";
  const text = formatFixed(x, 2);
  return size < 0.995 ? text.replace("0.", ".") : text;
}

/** A measure of a head on its card. */
export function formatMeasure(x) {
  return Math.abs(x) < 100 ? formatFixed(x, 2) : formatNumber(x, 0);
}

/** A tick label of an axis, as short as possible; a power of ten for very small and very large numbers. */
export function formatTick(x) {
  if (x !== 0 && (Math.abs(x) >= 1e6 || Math.abs(x) < 1e-3)) return formatNumber(x, 2).replace(/^(−?)1\.0·/, "$1");
  return withMinusSign(String(Number(x.toPrecision(4))));
}

function superscript(sign, digits) {
  return (sign === "+" || sign === "" ? "" : "⁻") + [...digits].map((d) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[Number(d)]).join("");
}

function withMinusSign(text) {
  return text.replaceAll("-", "−");
}

/** A fraction as a percentage, with one decimal below 10%. */
export function formatPercent(fraction) {
  return fraction >= 0.0995 || fraction === 0 ? formatWholePercent(fraction) : `${(100 * fraction).toFixed(1)}%`;
}

/** A fraction as a percentage without decimals. */
export function formatWholePercent(fraction) {
  return `${Math.round(100 * fraction)}%`;
}

/** The status of a long request: its text, and the finished fraction if it is known. */
export function formatProgress(text, fraction) {
  if (!text) return "";
  return fraction === null || fraction === undefined ? `${text}…` : `${text}, ${formatWholePercent(fraction)}`;
}

/** An integer with commas between thousands. */
export function formatCount(n) {
  return String(Math.round(n)).replace(/\B(?=(\d{3})+$)/g, ",");
}

/** A count with its noun: "1 token", "2 tokens". */
export function pluralize(n, noun) {
  return `${formatCount(n)} ${noun}${n === 1 ? "" : "s"}`;
}

/** A number of tokens in units of 1024 (k) and 1024² (M). */
export function formatTokenCount(n) {
  if (n >= 2 ** 20) return `${formatCount(n / 2 ** 20)}M`;
  return n >= 1024 ? `${formatCount(n / 1024)}k` : String(n);
}

/** A quantity with an SI prefix: 1.2 GFLOP. */
export function formatWithSiPrefix(x, unit) {
  const prefixes = ["", "k", "M", "G", "T", "P", "E"];
  const n = x > 0 ? Math.min(prefixes.length - 1, Math.max(0, Math.floor(Math.log10(x) / 3))) : 0;
  return `${Number((x / 1000 ** n).toPrecision(3))} ${prefixes[n]}${unit}`;
}

/** A duration in seconds, as µs, ms or s. */
export function formatDuration(seconds) {
  if (seconds < 1e-3) return `${(1e6 * seconds).toPrecision(3)} µs`;
  if (seconds < 1) return `${Number((1e3 * seconds).toPrecision(3))} ms`;
  return `${Number(seconds.toPrecision(3))} s`;
}

/** A token with visible line breaks and tabs. Spaces become dots if the token has nothing else. */
export function showWhitespace(token) {
  const text = token.replace(/\n/g, "⏎").replace(/\t/g, "⇥");
  return /^ +$/.test(text) ? "·".repeat(text.length) : text;
}

/** A token as a label, without surrounding spaces. */
export function tokenLabel(token) {
  return showWhitespace(token).trim() || "·";
}

/** A token in quotation marks, for sentences. */
export function quoteToken(token) {
  return `“${tokenLabel(token)}”`;
}

/** A text cut to at most `maxCharacters` characters, with an ellipsis. */
export function truncate(text, maxCharacters) {
  const characters = [...text];
  return characters.length > maxCharacters ? `${characters.slice(0, maxCharacters - 1).join("")}…` : text;
}
