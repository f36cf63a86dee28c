// The text beside a map: the exact weights of the hovered or selected query, at any zoom.

import { sqrtScale } from "../../lib/color/color-scale.js";
import { element, replaceContent } from "../../lib/element.js";
import { formatNumber } from "../../lib/format.js";
import { hiddenKeys, selectHead, selectTokens } from "../../state/selectors.js";
import { TokenFlow } from "../../widgets/token-flow.js";
import { topKeysList } from "../../widgets/top-tokens.js";

/** @import { Context, State } from "../../lib/types.js" */

const MIN_SHADED_WEIGHT = 0.003;
const HOVER_DELAY_MS = 60;

/**
 * @typedef {Object} Parts
 * @property {TokenFlow} flow
 * @property {HTMLElement} title
 * @property {HTMLElement} topKeys
 * @property {{query: number, values: Float32Array} | null} weights the row of a query
 * @property {string} requestId
 */

/** @param {Context} context */
export function shadedText(context) {
  const { store } = context;
  const title = element("h3", {});
  const flow = new TokenFlow({
    label: "Keys, shaded by the weight of the query. The left and right keys move, Enter selects a key.",
    point: (item) => {
      const { query } = store.get();
      store.set({ hoveredCell: item && query !== null ? { query, key: item.first } : null });
    },
    pick: (item) => store.set({ query: store.get().query ?? 0, key: item.first }),
    span: () => {},
    clear: () => store.set({ query: null, key: null }),
  });
  /** @type {Parts} */
  const parts = { flow, title, topKeys: element("div"), weights: null, requestId: "" };
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  const showText = () => {
    const { session, layer } = selectHead(store.get());
    const { columns, columnParts } = selectTokens(session, layer);
    flow.show(columns, { parts: columnParts });
    parts.requestId = "";
    update(context, parts);
  };
  context.subscribe((_, changed) => {
    /** @param {...string} names */
    const has = (...names) => names.some((name) => changed.has(name));
    if (has("serverState", "session", "layer")) showText();
    if (has("head", "hideSink", "query", "hoveredCell", "key")) {
      updateShading(store.get(), parts);
      clearTimeout(timer);
      timer = setTimeout(() => update(context, parts), HOVER_DELAY_MS);
    }
  });
  context.end(() => {
    clearTimeout(timer);
    flow.dispose();
  });
  showText();
  return { node: element("div", { class: "shaded-text" }, title, flow.node, parts.topKeys) };
}

/**
 * The hovered query, else the selected one.
 * @param {State} state
 */
function queryOf(state) {
  return state.hoveredCell?.query ?? state.query;
}

/**
 * @param {Context} context
 * @param {Parts} parts
 */
async function update(context, parts) {
  const state = context.store.get();
  const query = queryOf(state);
  const { layer } = selectHead(state);
  if (query === null) {
    parts.weights = null;
    parts.requestId = "";
    updateShading(state, parts);
    return;
  }
  const requestId = `${state.stateVersion} ${state.session} ${state.layer} ${state.head} ${query} ${state.hideSink}`;
  if (requestId === parts.requestId) return;
  parts.requestId = requestId;
  try {
    const headParams = { session: state.session, layer: layer.index, head: state.head };
    const mapInfo = (await context.requestCached("map_info", headParams)).values;
    const hidden = hiddenKeys(state, layer, mapInfo);
    const { arrays } = await context.request("query_weights", {
      session: state.session,
      layer: layer.index,
      heads: [state.head],
      queries: [query],
      ...hidden,
    });
    if (parts.requestId !== requestId) return;
    parts.weights = { query, values: arrays.mean.data };
    const current = context.store.get();
    updateShading(current, parts);
    parts.flow.reveal(current.hoveredCell?.key ?? current.key ?? 0);
  } catch (error) {
    const isMissing = error instanceof Error && error.name === "NotInFile";
    if (isMissing) replaceContent(parts.title, "This file does not contain single weights of this head.");
    else context.showError(error);
  }
}

/**
 * @param {State} state
 * @param {Parts} parts
 */
function updateShading(state, { flow, title, topKeys, weights }) {
  const query = queryOf(state);
  const row = weights && weights.query === query ? weights.values : null;
  const key = state.hoveredCell ? state.hoveredCell.key : state.key;
  const { session, layer } = selectHead(state);
  const isSelfAttention = layer.query_text === layer.key_text;
  /** @param {number} token */
  const tokenState = (token) => {
    if (query === null) return "";
    if (isSelfAttention && token === layer.query_offset + query) return "query";
    return token === key ? "key" : "";
  };
  flow.setTokenMarks(({ first }) => ({
    keyShade: row ? shade(row[first]) : 0,
    queryShade: 0,
    state: tokenState(first),
  }));
  const renderKey = `${state.stateVersion} ${state.layer} ${state.head} ${query} ${state.hideSink}`;
  if (query === null) {
    replaceContent(topKeys);
    topKeys.dataset.renderKey = "";
    replaceContent(title, "Text");
    return;
  }
  if (row && topKeys.dataset.renderKey !== renderKey) {
    topKeys.dataset.renderKey = renderKey;
    topKeys.dataset.query = String(query);
    replaceContent(topKeys, topKeysList(row, selectTokens(session, layer).columnLabels));
  }
  replaceContent(
    title,
    "Weights of ",
    element("b", { class: "query-color" }, `token ${layer.query_offset + query}`),
    row && key !== null ? `: ${formatNumber(row[key])} on token ${key}` : "",
  );
}

/** @param {number} weight */
function shade(weight) {
  return weight > MIN_SHADED_WEIGHT ? sqrtScale(weight) : 0;
}
