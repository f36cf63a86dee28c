// Which labels an axis of a map has room for, and their texts.

import { tokenLabel, truncate } from "../../lib/format.js";

/** @import { Range } from "../../lib/types.js" */

const MIN_LABEL_HEIGHT_PX = 11; // smaller rows have no legible token
const MAX_LABEL_CHARACTERS = 16;

/**
 * The labels of an axis: every index if there is room, else round ones; and marked ones, which replace neighbors.
 * @param {Range} range
 * @param {number} pixelsPerToken
 * @param {number[]} marked
 * @returns {Array<{n: number, isMarked: boolean}>}
 */
export function axisLabels([first, last], pixelsPerToken, marked) {
  const step = pixelsPerToken >= MIN_LABEL_HEIGHT_PX ? 1 : roundUp((4.5 * MIN_LABEL_HEIGHT_PX) / pixelsPerToken);
  const marks = [...new Set(marked.filter((n) => n >= first && n < last))];
  const labels = [];
  for (let n = Math.ceil(first / step) * step; n < last; n += step) {
    const isCovered = marks.some((m) => Math.abs(m - n) * pixelsPerToken < MIN_LABEL_HEIGHT_PX + 3);
    if (step === 1 ? !marks.includes(n) : !isCovered) labels.push({ n, isMarked: false });
  }
  return [...labels, ...marks.map((n) => ({ n, isMarked: true }))];
}

/**
 * The next number of the form 1, 2 or 5 times a power of ten.
 * @param {number} x
 */
function roundUp(x) {
  const power = 10 ** Math.floor(Math.log10(x));
  return [1, 2, 5].map((n) => n * power).find((n) => n >= x) ?? 10 * power;
}

/**
 * The text of a label: the token if it is legible or marked, else its index.
 * @param {string[]} tokens
 * @param {number} n
 * @param {number} pixelsPerToken
 * @param {boolean} isMarked
 */
export function labelText(tokens, n, pixelsPerToken, isMarked) {
  return pixelsPerToken >= MIN_LABEL_HEIGHT_PX || isMarked ? shortLabel(tokens[n] ?? "") : String(n);
}

/** @param {string} token */
export function shortLabel(token) {
  return truncate(tokenLabel(token), MAX_LABEL_CHARACTERS);
}
