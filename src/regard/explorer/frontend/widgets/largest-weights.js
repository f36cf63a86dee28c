// The largest weights of a row or of a column of a map.

const MAX_LISTED_TOKENS = 9;
const MIN_RELATIVE_WEIGHT = 1e-4; // smaller fractions of the largest weight are not listed
const MIN_LISTED_TOKENS = 3; // listed even if their weights are smaller

/** @typedef {{value: number, text: string, first: number, last: number}} WeightItem the sum of the tokens first to last */

/**
 * The items with the largest weights, in descending order; tokens of one word are summed if `words` has word ids.
 * @param {ArrayLike<number>} values
 * @param {string[]} tokens
 * @param {number[] | null} words
 */
export function largestWeights(values, tokens, words) {
  /** @type {WeightItem[]} */
  const items = [];
  for (let n = 0; n < values.length; n += 1) {
    const previous = items.at(-1);
    if (words && previous && words[n] === words[previous.last]) {
      previous.value += values[n];
      previous.text += tokens[n];
      previous.last = n;
    } else items.push({ value: values[n], text: tokens[n] ?? "", first: n, last: n });
  }
  const sorted = items
    .filter((item) => item.value > 0)
    .sort((a, b) => b.value - a.value)
    .slice(0, MAX_LISTED_TOKENS);
  return sorted.filter((item, n) => n < MIN_LISTED_TOKENS || item.value >= MIN_RELATIVE_WEIGHT * sorted[0].value);
}
