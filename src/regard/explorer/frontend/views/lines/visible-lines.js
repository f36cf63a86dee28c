// The heads and the tokens that the Lines view shows.

import { selectHead } from "../../state/selectors.js";

/** @import { LineArrays, State } from "../../lib/types.js" */

const [MIN_ROW_PX, MAX_ROW_PX] = [21, 28];
const MIN_ROWS = 6;
const MARGIN_PX = 12; // above and below all rows together

/**
 * The heads whose lines are drawn.
 * @param {State} state
 */
export function selectedHeads(state) {
  const { layer, head: openHead } = selectHead(state);
  const heads = layer.head_indices;
  const selected = (state.lineHeads ?? [openHead]).filter((head) => heads.includes(head));
  return selected.length ? selected : [heads[0]];
}

/**
 * The visible tokens: the height of a row in pixels, the number of rows, and the first and last token.
 * @param {State} state
 * @param {number} areaHeight in pixels
 */
export function visibleRange(state, areaHeight) {
  const { layer } = selectHead(state);
  const numTokens = Math.max(layer.num_queries, layer.num_keys);
  const rowHeight = Math.max(MIN_ROW_PX, Math.min(MAX_ROW_PX, (areaHeight - MARGIN_PX) / numTokens));
  const numRows = Math.max(MIN_ROWS, Math.floor((areaHeight - MARGIN_PX) / rowHeight + 1e-6));
  const start = Math.max(0, Math.min(state.lineStart, numTokens - numRows));
  return { rowHeight, numRows, start, numTokens, queryEnd: Math.min(layer.num_queries, start + numRows), layer };
}

/** The order in which lines are drawn: the strongest last. @param {LineArrays} lines */
export function drawingOrder({ weight }) {
  return [...weight.data.keys()].sort((a, b) => weight.data[a] - weight.data[b]);
}

/**
 * The position of the end of a line: lines to invisible keys end just outside of the drawing.
 * @param {number} y
 * @param {number} height of the drawing
 */
export function clampLineEnd(y, height) {
  return Math.max(-MAX_ROW_PX, Math.min(height + MAX_ROW_PX, y));
}
