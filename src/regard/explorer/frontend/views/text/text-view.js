// The Text view: the text, shaded by the keys that a token attends to and the queries that attend to it.

import { segmentedControl, element, replaceContent } from "../../lib/element.js";
import { headToolbar } from "../../widgets/head-toolbar.js";
import { drawTopTokens } from "../../widgets/top-tokens.js";
import { sqrtScale } from "../../lib/color/color-scale.js";
import { selectLayer, selectSession, selectTokens } from "../../state/selectors.js";
import { TokenFlow } from "../../widgets/token-flow.js";

const MIN_SHADED_WEIGHT = 0.003;
const HOVER_DELAY_MS = 40;

export function textView(context) {
  const { store } = context;
  const parts = {
    panes: element("div", { class: "panes" }),
    sidebar: element("aside", { class: "sidebar" }),
    flows: {},
    hovered: null,
    weights: null,
    requestId: "",
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
    const has = (...names) => names.some((name) => changed.has(name));
    if (has("serverState", "session", "layer", "showWords")) build(context, parts);
    else if (has("head", "pinnedTokens", "pinnedSide")) update(context, parts);
  });
  context.end(() => {
    clearTimeout(parts.timer);
    Object.values(parts.flows).forEach((flow) => flow.dispose());
  });
  build(context, parts);
  return element(
    "section",
    { class: "view text-view", "aria-label": "Text" },
    headToolbar(context, units),
    element("div", { class: "two-columns" }, parts.panes, parts.sidebar),
  );
}

/** Shows the text, or two texts if queries and keys are of different ones (cross-attention). */
function build(context, parts) {
  const state = context.store.get();
  const tokens = selectTokens(selectSession(state), selectLayer(state));
  const { texts } = selectSession(state);
  const layer = selectLayer(state);
  Object.values(parts.flows).forEach((flow) => flow.dispose());
  const createPane = (side, title, tokenTexts, words, partialCharacters) => {
    const flow = new TokenFlow({
      label: `${title}. The left and right keys move, Enter pins a token, Shift+Enter adds one, Escape unpins all.`,
      point: (item) => hover(context, parts, side, item),
      pick: (item, add) => pin(context, side, tokenRange(item), add),
      span: (item) => context.store.set({ pinnedTokens: tokenRange(item), pinnedSide: side }),
      clear: () => context.store.set({ pinnedTokens: [] }),
    });
    flow.show(tokenTexts, { words: state.showWords ? words : null, parts: partialCharacters });
    parts.flows[side] = flow;
    return element("div", { class: "pane" }, tokens.isCrossAttention ? element("h3", {}, title) : null, flow.node);
  };
  parts.flows = {};
  const queries = [tokens.rows, tokens.rowWords, tokens.rowParts];
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

function tokenRange(item) {
  return Array.from({ length: item.last - item.first + 1 }, (_, n) => item.first + n);
}

function hover(context, parts, side, item) {
  parts.hovered = item ? { side, tokens: tokenRange(item) } : null;
  clearTimeout(parts.timer);
  parts.timer = setTimeout(() => update(context, parts), HOVER_DELAY_MS);
}

/** Pins tokens, or unpins them if they are pinned; `add` keeps the other pinned tokens. */
function pin({ store }, side, tokens, add) {
  const { pinnedTokens, pinnedSide } = store.get();
  const isPinned = side === pinnedSide && tokens.every((token) => pinnedTokens.includes(token));
  if (add && side === pinnedSide) {
    const rest = pinnedTokens.filter((token) => !tokens.includes(token));
    store.set({ pinnedTokens: isPinned ? rest : [...rest, ...tokens].sort((a, b) => a - b), pinnedSide: side });
  } else store.set({ pinnedTokens: isPinned && pinnedTokens.length === tokens.length ? [] : tokens, pinnedSide: side });
}

/** The hovered tokens, else the pinned ones. */
function activeTokens(state, parts) {
  return parts.hovered ?? (state.pinnedTokens.length ? { side: state.pinnedSide, tokens: state.pinnedTokens } : null);
}

async function update(context, parts) {
  const state = context.store.get();
  const active = activeTokens(state, parts);
  const layer = selectLayer(state);
  const head = `${state.stateVersion} ${state.session} ${layer.index} ${state.head}`;
  const requestId = active ? `${head} ${active.side} ${active.tokens}` : "";
  if (requestId && requestId !== parts.requestId) {
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

/** The weights of tokens as queries (row) and as keys (column). */
async function fetchTokenWeights({ request }, state, layer, { side, tokens }) {
  const params = { session: state.session, layer: layer.index, heads: [state.head] };
  const isCrossAttention = layer.query_text !== layer.key_text;
  const queries = isCrossAttention
    ? side === "query"
      ? tokens
      : []
    : tokens.map((t) => t - layer.query_offset).filter((q) => q >= 0 && q < layer.num_queries);
  const keys = isCrossAttention ? (side === "key" ? tokens : []) : tokens.filter((t) => t < layer.num_keys);
  const [row, column] = await Promise.all([
    queries.length ? request("query_weights", { ...params, queries }) : null,
    keys.length ? request("key_weights", { ...params, keys }) : null,
  ]);
  return { row: row?.arrays.mean.data ?? null, column: column?.arrays.sum.data ?? null, queries, keys };
}

function updateTokenShading(context, parts) {
  const state = context.store.get();
  const layer = selectLayer(state);
  const isCrossAttention = layer.query_text !== layer.key_text;
  const { weights } = parts;
  const shade = (values, first, last) => {
    let sum = 0;
    for (let n = first; n <= last; n += 1) sum += values?.[n] ?? 0;
    return sum > MIN_SHADED_WEIGHT ? sqrtScale(sum) : 0;
  };
  for (const [side, flow] of Object.entries(parts.flows)) {
    const isKeys = !isCrossAttention || side === "key";
    const isQueries = !isCrossAttention || side === "query";
    const offset = isCrossAttention ? 0 : layer.query_offset;
    flow.setTokenMarks(({ first, last }) => ({
      keyShade: isKeys ? shade(weights?.row, first, last) : 0,
      queryShade: isQueries ? shade(weights?.column, first - offset, last - offset) : 0,
      state: tokenState(state, parts, side, first),
    }));
  }
  const tokens = selectTokens(selectSession(state), layer);
  const sentence = drawTopTokens(parts.sidebar, { weights, tokens, showWords: state.showWords, isCrossAttention });
  if (sentence && sentence !== parts.sentence) context.announce(sentence);
  parts.sentence = sentence;
}

function tokenState(state, parts, side, token) {
  const isHovered = parts.hovered?.side === side && parts.hovered.tokens.includes(token);
  const isPinned = state.pinnedSide === side && state.pinnedTokens.includes(token);
  return isPinned ? "pinned" : isHovered ? "query" : "";
}
