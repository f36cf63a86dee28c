// The text beside a map: the exact weights of the hovered or selected query, at any zoom.

import { element, replaceContent } from "../../lib/element.js";
import { formatNumber } from "../../lib/format.js";
import { topKeysList } from "../../widgets/top-tokens.js";
import { sqrtScale } from "../../lib/color/color-scale.js";
import { isSinkHidden, selectLayer, selectSession, selectTokens } from "../../state/selectors.js";
import { TokenFlow } from "../../widgets/token-flow.js";

const MIN_SHADED_WEIGHT = 0.003;
const HOVER_DELAY_MS = 60;

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
  const parts = { flow, title, topKeys: element("div"), weights: null, requestId: "" };
  let timer = 0;
  const showText = () => {
    const state = store.get();
    const session = selectSession(state);
    if (session) {
      const { columns, columnParts } = selectTokens(session, selectLayer(state));
      flow.show(columns, { parts: columnParts });
    }
    parts.requestId = "";
    update(context, parts);
  };
  context.subscribe((_, changed) => {
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

/** The hovered query, else the selected one. */
function queryOf(state) {
  return state.hoveredCell?.query ?? state.query;
}

async function update(context, parts) {
  const state = context.store.get();
  const query = queryOf(state);
  const layer = selectLayer(state);
  if (query === null || query === undefined || !layer) {
    parts.weights = null;
    parts.requestId = "";
    return updateShading(state, parts);
  }
  const requestId = `${state.stateVersion} ${state.session} ${state.layer} ${state.head} ${query} ${state.hideSink}`;
  if (requestId === parts.requestId) return undefined;
  parts.requestId = requestId;
  try {
    const headParams = { session: state.session, layer: layer.index, head: state.head };
    const mapInfo = (await context.requestCached("map_info", headParams)).values;
    const hidden = isSinkHidden(state, layer, mapInfo) ? { hidden_keys: [mapInfo.sink.key] } : {};
    const { arrays } = await context.request("query_weights", {
      session: state.session,
      layer: layer.index,
      heads: [state.head],
      queries: [query],
      ...hidden,
    });
    if (parts.requestId !== requestId) return undefined;
    parts.weights = { query, values: arrays.mean.data };
    const current = context.store.get();
    updateShading(current, parts);
    return parts.flow.reveal(current.hoveredCell?.key ?? current.key ?? 0);
  } catch (error) {
    if (error.name !== "NotInFile") return context.showError(error);
    return replaceContent(parts.title, "This file does not contain single weights of this head.");
  }
}

function updateShading(state, { flow, title, topKeys, weights }) {
  const query = queryOf(state);
  const row = weights && weights.query === query ? weights.values : null;
  const key = state.hoveredCell ? state.hoveredCell.key : state.key;
  const hasQuery = query !== null && query !== undefined;
  const layer = selectLayer(state);
  const isSelfAttention = layer && layer.query_text === layer.key_text;
  const tokenState = (token) => {
    if (!hasQuery) return "";
    if (isSelfAttention && token === layer.query_offset + query) return "query";
    return token === key ? "key" : "";
  };
  flow.setTokenMarks(({ first }) => ({
    keyShade: row ? shade(row[first]) : 0,
    queryShade: 0,
    state: tokenState(first),
  }));
  const renderKey = `${state.stateVersion} ${state.layer} ${state.head} ${query} ${state.hideSink}`;
  if (!hasQuery) {
    replaceContent(topKeys);
    topKeys.dataset.renderKey = "";
  } else if (row && topKeys.dataset.renderKey !== renderKey) {
    topKeys.dataset.renderKey = renderKey;
    topKeys.dataset.query = query;
    replaceContent(topKeys, topKeysList(row, selectTokens(selectSession(state), layer).columnLabels));
  }
  if (!hasQuery) return replaceContent(title, "Text");
  return replaceContent(
    title,
    "Weights of ",
    element("b", { class: "query-color" }, `token ${layer.query_offset + query}`),
    row && key !== null && key !== undefined ? `: ${formatNumber(row[key])} on token ${key}` : "",
  );
}

function shade(weight) {
  return weight > MIN_SHADED_WEIGHT ? sqrtScale(weight) : 0;
}
