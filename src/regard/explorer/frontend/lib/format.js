// Formatting of numbers, counts, durations and tokens for display. Every number on the page is formatted here.

/**
 * A weight or a score with `digits` decimals; very small and very large numbers in scientific notation: 1.2·10⁻⁵.
 * @param {number | null | undefined} x
 */
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

/**
 * A number for a narrow column: −5e−4 instead of −5.0·10⁻⁴.
 * @param {number | null} x
 * @param {number} digits
 */
export function formatNumberShort(x, digits) {
  if (x === null) return formatNumber(x);
  const size = Math.abs(x);
  const isScientific = Number.isFinite(x) && size > 0 && (size < 10 ** -digits || size >= 1e5);
  return isScientific ? withMinusSign(x.toExponential(0).replace("+", "")) : formatNumber(x, digits);
}

/**
 * A number with a fixed number of decimals.
 * @param {number} x
 * @param {number} digits
 */
export function formatFixed(x, digits) {
  const text = x.toFixed(digits);
  return withMinusSign(/[1-9]/.test(text) ? text : text.replace("-", "")); // no minus sign before a rounded zero
}

/**
 * An integer without decimals, any other number with four.
 * @param {number | null} x
 */
export function formatIntegerOrNumber(x) {
  return x !== null && Number.isInteger(x) && Math.abs(x) < 1e6 ? withMinusSign(String(x)) : formatNumber(x, 4);
}

/**
 * A weight inside a map cell: .25, and a dot below 0.005.
 * @param {number} x
 */
export function formatCellWeight(x) {
  const size = Math.abs(x);
  if (size < 0.005) return "·";
  const text = formatFixed(x, 2);
  return size < 0.995 ? text.replace("0.", ".") : text;
}

/**
 * A measure of a head on its card.
 * @param {number} x
 */
export function formatMeasure(x) {
  return Math.abs(x) < 100 ? formatFixed(x, 2) : formatNumber(x, 0);
}

/**
 * A tick label of an axis, as short as possible; a power of ten for very small and very large numbers.
 * @param {number} x
 */
export function formatTick(x) {
  if (x !== 0 && (Math.abs(x) >= 1e6 || Math.abs(x) < 1e-3)) return formatNumber(x, 2).replace(/^(−?)1\.0·/, "$1");
  return withMinusSign(String(Number(x.toPrecision(4))));
}

/**
 * @param {string} sign
 * @param {string} digits
 */
function superscript(sign, digits) {
  return (sign === "+" || sign === "" ? "" : "⁻") + [...digits].map((d) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[Number(d)]).join("");
}

/** @param {string} text */
function withMinusSign(text) {
  return text.replaceAll("-", "−");
}

/**
 * A fraction as a percentage, with one decimal below 10%.
 * @param {number} fraction
 */
export function formatPercent(fraction) {
  return fraction >= 0.0995 || fraction === 0 ? formatWholePercent(fraction) : `${(100 * fraction).toFixed(1)}%`;
}

/**
 * A fraction as a percentage without decimals.
 * @param {number} fraction
 */
export function formatWholePercent(fraction) {
  return `${Math.round(100 * fraction)}%`;
}

/**
 * The status of a long request: its text, and the finished fraction if it is known.
 * @param {string} text
 * @param {number | null | undefined} fraction
 */
export function formatProgress(text, fraction) {
  if (!text) return "";
  return fraction === null || fraction === undefined ? `${text}…` : `${text}, ${formatWholePercent(fraction)}`;
}

/**
 * An integer with commas between thousands.
 * @param {number} n
 */
export function formatCount(n) {
  return String(Math.round(n)).replace(/\B(?=(\d{3})+$)/g, ",");
}

/**
 * A count with its noun: "1 token", "2 tokens".
 * @param {number} n
 * @param {string} noun
 */
export function pluralize(n, noun) {
  return `${formatCount(n)} ${noun}${n === 1 ? "" : "s"}`;
}

/**
 * A number of tokens in units of 1024 (k) and 1024² (M).
 * @param {number} n
 */
export function formatTokenCount(n) {
  if (n >= 2 ** 20) return `${formatCount(n / 2 ** 20)}M`;
  return n >= 1024 ? `${formatCount(n / 1024)}k` : String(n);
}

/**
 * A quantity with an SI prefix: 1.2 GFLOP.
 * @param {number} x
 * @param {string} unit
 */
export function formatWithSiPrefix(x, unit) {
  const prefixes = ["", "k", "M", "G", "T", "P", "E"];
  const rounded = roundToThreeDigits(x); // before the prefix is chosen: 999.9 k is 1 M
  let n = 0;
  while (n + 1 < prefixes.length && rounded >= 1000 ** (n + 1)) n += 1;
  return `${roundToThreeDigits(rounded / 1000 ** n)} ${prefixes[n]}${unit}`;
}

/**
 * A duration in seconds, as µs, ms or s.
 * @param {number} seconds
 */
export function formatDuration(seconds) {
  const rounded = roundToThreeDigits(seconds); // before the unit is chosen: 999.9 µs is 1 ms
  if (rounded < 1e-3) return `${roundToThreeDigits(1e6 * rounded)} µs`;
  if (rounded < 1) return `${roundToThreeDigits(1e3 * rounded)} ms`;
  return `${rounded} s`;
}

/** @param {number} x */
function roundToThreeDigits(x) {
  return Number(x.toPrecision(3));
}

/**
 * A token with visible line breaks and tabs. Spaces become dots if the token has nothing else.
 * @param {string} token
 */
export function showWhitespace(token) {
  const text = token.replace(/\n/g, "⏎").replace(/\t/g, "⇥");
  return /^ +$/.test(text) ? "·".repeat(text.length) : text;
}

/**
 * A token as a label, without surrounding spaces.
 * @param {string} token
 */
export function tokenLabel(token) {
  return showWhitespace(token).trim() || "·";
}

/**
 * A token in quotation marks, for sentences.
 * @param {string} token
 */
export function quoteToken(token) {
  return `“${tokenLabel(token)}”`;
}

/**
 * A text cut to at most `maxCharacters` characters, with an ellipsis.
 * @param {string} text
 * @param {number} maxCharacters
 */
export function truncate(text, maxCharacters) {
  const characters = [...text];
  return characters.length > maxCharacters ? `${characters.slice(0, maxCharacters - 1).join("")}…` : text;
}
