// The Text view: the text, shaded by the keys that a token attends to and the queries that attend to it.

import { sqrtScale } from "../../lib/color/color-scale.js";
import { element, replaceContent, segmentedControl } from "../../lib/element.js";
import { selectHead, selectTokens } from "../../state/selectors.js";
import { headToolbar } from "../../widgets/head-toolbar.js";
import { TokenFlow } from "../../widgets/token-flow.js";
import { drawTopTokens } from "../../widgets/top-tokens.js";
import { pinTokens, queriesAndKeys, tokenRange } from "./token-selection.js";

/**
 * @import { Context, Layer, PartialCharacters, Side, State } from "../../lib/types.js"
 * @import { Item } from "../../widgets/token-lines.js"
 * @import { TokenWeights } from "../../widgets/top-tokens.js"
 * @import { Selection } from "./token-selection.js"
 */

const MIN_SHADED_WEIGHT = 0.003;
/** @type {Side[]} */
const SIDES = ["query", "key"];
const HOVER_DELAY_MS = 40;

/**
 * @typedef {Object} Parts
 * @property {HTMLElement} panes
 * @property {HTMLElement} sidebar
 * @property {Partial<Record<Side, TokenFlow>>} flows one for self-attention, two for cross-attention
 * @property {Selection | null} hovered
 * @property {TokenWeights | null} weights
 * @property {string} requestId
 * @property {string} sentence the last announced sentence
 * @property {ReturnType<typeof setTimeout> | undefined} timer
 */

/** @param {Context} context */
export function textView(context) {
  const { store } = context;
  /** @type {Parts} */
  const parts = {
    panes: element("div", { class: "panes" }),
    sidebar: element("aside", { class: "sidebar" }),
    flows: {},
    hovered: null,
    weights: null,
    requestId: "",
    sentence: "",
    timer: undefined,
  };
  const units = segmentedControl(
    "Units",
    [
      ["tokens", "Tokens"],
      ["words", "Words"],
    ],
    store.get().showWords ? "words" : "tokens",
    (name) => store.set({ showWords: name === "words" }),
  );
  context.subscribe((_, changed) => {
    /** @param {...string} names */
    const has = (...names) => names.some((name) => changed.has(name));
    if (has("serverState", "session", "layer", "showWords")) build(context, parts);
    else if (has("head", "pinnedTokens", "pinnedSide")) update(context, parts);
  });
  context.end(() => {
    clearTimeout(parts.timer);
    for (const flow of Object.values(parts.flows)) flow.dispose();
  });
  build(context, parts);
  return element(
    "section",
    { class: "view text-view", "aria-label": "Text" },
    headToolbar(context, units),
    element("div", { class: "two-columns" }, parts.panes, parts.sidebar),
  );
}

/**
 * Shows the text, or two texts if queries and keys are of different ones (cross-attention).
 * @param {Context} context
 * @param {Parts} parts
 */
function build(context, parts) {
  const state = context.store.get();
  const { session, layer } = selectHead(state);
  const { texts } = session;
  const tokens = selectTokens(session, layer);
  for (const flow of Object.values(parts.flows)) flow.dispose();
  /**
   * @param {Side} side
   * @param {string} title
   * @param {string[]} tokenTexts
   * @param {number[]} words
   * @param {PartialCharacters} partialCharacters
   */
  const createPane = (side, title, tokenTexts, words, partialCharacters) => {
    const flow = new TokenFlow({
      label: `${title}. The left and right keys move, Enter pins a token, Shift+Enter adds one, Escape unpins all.`,
      point: (item) => hover(context, parts, side, item),
      pick: (item, add) => context.store.set(pinTokens(context.store.get(), side, tokenRange(item), add)),
      span: (item) => context.store.set({ pinnedTokens: tokenRange(item), pinnedSide: side }),
      clear: () => context.store.set({ pinnedTokens: [] }),
    });
    flow.show(tokenTexts, { words: state.showWords ? words : null, parts: partialCharacters });
    parts.flows[side] = flow;
    return element("div", { class: "pane" }, tokens.isCrossAttention ? element("h3", {}, title) : null, flow.node);
  };
  parts.flows = {};
  /** @type {[string[], number[], PartialCharacters]} */
  const queries = [tokens.rows, tokens.rowWords, tokens.rowParts];
  /** @type {[string[], number[], PartialCharacters]} */
  const keys = [tokens.columns, tokens.columnWords, tokens.columnParts];
  const panes = tokens.isCrossAttention
    ? [
        createPane("query", `${texts[layer.query_text].name}: queries`, ...queries),
        createPane("key", `${texts[layer.key_text].name}: keys`, ...keys),
      ]
    : [createPane("query", "Text", ...keys)];
  replaceContent(parts.panes, panes);
  parts.hovered = null;
  parts.requestId = "";
  update(context, parts);
}

/**
 * @param {Context} context
 * @param {Parts} parts
 * @param {Side} side
 * @param {Item | null} item
 */
function hover(context, parts, side, item) {
  parts.hovered = item ? { side, tokens: tokenRange(item) } : null;
  clearTimeout(parts.timer);
  parts.timer = setTimeout(() => update(context, parts), HOVER_DELAY_MS);
}

/**
 * The hovered tokens, else the pinned ones.
 * @param {State} state
 * @param {Parts} parts
 * @returns {Selection | null}
 */
function activeTokens(state, parts) {
  return parts.hovered ?? (state.pinnedTokens.length ? { side: state.pinnedSide, tokens: state.pinnedTokens } : null);
}

/**
 * @param {Context} context
 * @param {Parts} parts
 */
async function update(context, parts) {
  const state = context.store.get();
  const active = activeTokens(state, parts);
  const { layer } = selectHead(state);
  const head = `${state.stateVersion} ${state.session} ${layer.index} ${state.head}`;
  const requestId = active ? `${head} ${active.side} ${active.tokens}` : "";
  if (active && requestId !== parts.requestId) {
    parts.requestId = requestId;
    try {
      const weights = await fetchTokenWeights(context, state, layer, active);
      if (parts.requestId !== requestId) return;
      parts.weights = weights;
    } catch (error) {
      context.showError(error);
      return;
    }
  }
  if (!requestId) {
    parts.requestId = "";
    parts.weights = null;
  }
  updateTokenShading(context, parts);
}

/**
 * The weights of tokens as queries (row) and as keys (column).
 * @param {Context} context
 * @param {State} state
 * @param {Layer} layer
 * @param {Selection} selection
 * @returns {Promise<TokenWeights>}
 */
async function fetchTokenWeights({ request }, state, layer, selection) {
  const params = { session: state.session, layer: layer.index, heads: [state.head] };
  const { queries, keys } = queriesAndKeys(layer, selection);
  const [row, column] = await Promise.all([
    queries.length ? request("query_weights", { ...params, queries }) : null,
    keys.length ? request("key_weights", { ...params, keys }) : null,
  ]);
  return { row: row?.arrays.mean.data ?? null, column: column?.arrays.sum.data ?? null, queries, keys };
}

/**
 * @param {Context} context
 * @param {Parts} parts
 */
function updateTokenShading(context, parts) {
  const state = context.store.get();
  const { session, layer } = selectHead(state);
  const isCrossAttention = layer.query_text !== layer.key_text;
  const { weights } = parts;
  /**
   * @param {Float32Array | null | undefined} values
   * @param {number} first
   * @param {number} last
   */
  const shade = (values, first, last) => {
    let sum = 0;
    for (let n = first; n <= last; n += 1) sum += values?.[n] ?? 0;
    return sum > MIN_SHADED_WEIGHT ? sqrtScale(sum) : 0;
  };
  for (const side of SIDES) {
    const flow = parts.flows[side];
    if (!flow) continue;
    const isKeys = !isCrossAttention || side === "key";
    const isQueries = !isCrossAttention || side === "query";
    const offset = isCrossAttention ? 0 : layer.query_offset;
    flow.setTokenMarks(({ first, last }) => ({
      keyShade: isKeys ? shade(weights?.row, first, last) : 0,
      queryShade: isQueries ? shade(weights?.column, first - offset, last - offset) : 0,
      state: tokenState(state, parts, side, first),
    }));
  }
  const tokens = selectTokens(session, layer);
  const sentence = drawTopTokens(parts.sidebar, { weights, tokens, showWords: state.showWords, isCrossAttention });
  if (sentence && sentence !== parts.sentence) context.announce(sentence);
  parts.sentence = sentence;
}

/**
 * @param {State} state
 * @param {Parts} parts
 * @param {Side} side
 * @param {number} token
 */
function tokenState(state, parts, side, token) {
  const isHovered = parts.hovered?.side === side && parts.hovered.tokens.includes(token);
  const isPinned = state.pinnedSide === side && state.pinnedTokens.includes(token);
  return isPinned ? "pinned" : isHovered ? "query" : "";
}
