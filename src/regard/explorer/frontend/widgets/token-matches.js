// Finds the tokens in which the occurrences of a text begin.

import { selectLayer, selectSession, selectTokens } from "../state/selectors.js";

/** @import { State } from "../lib/types.js" */

/**
 * The cells of the tokens in which the occurrences of a text begin.
 * @param {State} state
 * @param {string} text
 * @returns {Array<[query: number, key: number]>}
 */
export function findTokens(state, text) {
  const session = selectSession(state);
  const layer = selectLayer(state);
  if (!session || !layer || !text.trim()) return [];
  const { rows, columns, isCrossAttention } = selectTokens(session, layer);
  const tokens = matchingTokens(isCrossAttention ? columns : rows, text.trim().toLowerCase());
  /** @param {number} n */
  const key = (n) => Math.max(0, Math.min(columns.length - 1, isCrossAttention ? n : n + layer.query_offset));
  return tokens.map((n) => [isCrossAttention ? Math.min(n, rows.length - 1) : n, key(n)]);
}

/**
 * The indices of the tokens in which the occurrences of a text begin; an occurrence may span several tokens.
 * @param {string[]} tokens
 * @param {string} text in lower case
 */
export function matchingTokens(tokens, text) {
  const starts = [];
  let joined = "";
  for (const token of tokens) {
    starts.push(joined.length);
    joined += token.toLowerCase();
  }
  /** @type {number[]} */
  const indices = [];
  let n = 0;
  for (let start = joined.indexOf(text); start >= 0; start = joined.indexOf(text, start + 1)) {
    while (n + 1 < starts.length && starts[n + 1] <= start) n += 1;
    if (indices.at(-1) !== n) indices.push(n);
  }
  return indices;
}
