// The selected tokens of the Text view, and the queries and keys whose weights are shown.

/**
 * @import { Layer, Side, State } from "../../lib/types.js"
 * @import { Item } from "../../widgets/token-lines.js"
 */

/** @typedef {{side: Side, tokens: number[]}} Selection the text of the tokens, and their indices */

/**
 * The tokens of an item.
 * @param {Item} item
 */
export function tokenRange(item) {
  return Array.from({ length: item.last - item.first + 1 }, (_, n) => item.first + n);
}

/**
 * The change of the state that pins tokens, or unpins them if they are pinned; `add` keeps the other pinned tokens.
 * @param {Pick<State, "pinnedTokens" | "pinnedSide">} state
 * @param {Side} side
 * @param {number[]} tokens
 * @param {boolean} add
 * @returns {Partial<State>}
 */
export function pinTokens({ pinnedTokens, pinnedSide }, side, tokens, add) {
  const isPinned = side === pinnedSide && tokens.every((token) => pinnedTokens.includes(token));
  if (add && side === pinnedSide) {
    const rest = pinnedTokens.filter((token) => !tokens.includes(token));
    return { pinnedTokens: isPinned ? rest : [...rest, ...tokens].sort((a, b) => a - b), pinnedSide: side };
  }
  return { pinnedTokens: isPinned && pinnedTokens.length === tokens.length ? [] : tokens, pinnedSide: side };
}

/**
 * The queries and the keys of selected tokens; in self-attention, a token is both.
 * @param {Layer} layer
 * @param {Selection} selection
 * @returns {{queries: number[], keys: number[]}}
 */
export function queriesAndKeys(layer, { side, tokens }) {
  const isCrossAttention = layer.query_text !== layer.key_text;
  if (isCrossAttention) return side === "query" ? { queries: tokens, keys: [] } : { queries: [], keys: tokens };
  return {
    queries: tokens
      .map((token) => token - layer.query_offset)
      .filter((query) => query >= 0 && query < layer.num_queries),
    keys: tokens.filter((token) => token < layer.num_keys),
  };
}
