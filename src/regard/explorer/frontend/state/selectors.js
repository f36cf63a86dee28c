// Selectors: the session, the layer and the tokens that the state selects.

/** @import { Layer, LayerTokens, MapData, MapInfo, Session, State, Text } from "../lib/types.js" */

/**
 * The open session; undefined if there is none.
 * @param {State} state
 */
export function selectSession(state, id = state.session) {
  return state.serverState?.sessions.find((session) => session.id === id);
}

/**
 * The selected layer of a session; its first layer if the session does not have the selected one.
 * @param {State} state
 */
export function selectLayer(state, id = state.session) {
  const session = selectSession(state, id);
  return session?.layers.find(({ index }) => index === state.layer) ?? session?.layers[0];
}

/**
 * The open session, its selected layer and the selected head, for views that need an open text.
 * @param {State} state
 */
export function selectHead(state, id = state.session) {
  const session = selectSession(state, id);
  const layer = selectLayer(state, id);
  if (!session || !layer || state.head === null) throw new Error("A session must be open.");
  return { session, layer, head: state.head };
}

const MAX_LINEAR_SCALE_TOKENS = 96; // longer texts have a logarithmic scale by default

/**
 * The selected color scale; by default linear for short texts and logarithmic for long ones.
 * @param {State} state
 */
export function effectiveScale(state) {
  if (state.scale !== "auto") return state.scale;
  const layer = selectLayer(state);
  return layer && Math.max(layer.num_queries, layer.num_keys) <= MAX_LINEAR_SCALE_TOKENS ? "linear" : "log";
}

/** @type {WeakMap<Text, string[]>} */
const labelCache = new WeakMap(); // labels of texts with partial characters

/**
 * A label for each token of a text: the token, or for a partial character the character with the token's bytes.
 * @param {Text} text
 */
export function tokenLabels(text) {
  const partial = text.partial_characters ?? {};
  if (!Object.keys(partial).length) return text.tokens;
  const labels = labelCache.get(text) ?? text.tokens.map((token, n) => partial[n]?.[0] ?? token);
  labelCache.set(text, labels);
  return labels;
}

/**
 * The tokens of a layer's queries (rows) and keys (columns), their labels, and their word ids. The joined tokens are
 * the text: the first of several tokens that share a character contains it. Labels identify single tokens.
 * @param {Session} session
 * @param {Layer} layer
 * @returns {LayerTokens}
 */
export function selectTokens(session, layer) {
  const queries = session.texts[layer.query_text];
  const keys = session.texts[layer.key_text];
  /**
   * @template T
   * @param {T[]} list
   */
  const queryRange = (list) => list.slice(layer.query_offset, layer.query_offset + layer.num_queries);
  return {
    rows: queryRange(queries.tokens),
    columns: keys.tokens,
    rowLabels: queryRange(tokenLabels(queries)),
    columnLabels: tokenLabels(keys),
    rowParts: layer.query_offset ? {} : (queries.partial_characters ?? {}),
    columnParts: keys.partial_characters ?? {},
    rowWords: queryRange(queries.word_ids),
    columnWords: keys.word_ids,
    isCrossAttention: layer.query_text !== layer.key_text,
    queryOffset: layer.query_offset,
  };
}

/**
 * The selected layer, head, cell and tokens, clamped to the session.
 * @param {State} state
 * @returns {Partial<State>}
 */
export function clampSelection(state) {
  const layer = selectLayer(state);
  if (!layer) return {};
  const head = state.head !== null && layer.head_indices.includes(state.head) ? state.head : layer.head_indices[0];
  const isInside = isInRange(state.query, layer.num_queries) && isInRange(state.key, layer.num_keys);
  const cell = isInside ? { query: state.query, key: state.key } : { query: null, key: null };
  const pinnedTokens = state.pinnedTokens.filter((token) => token < Math.max(layer.num_keys, layer.num_queries));
  const clamped = pinnedTokens.length < state.pinnedTokens.length ? { pinnedTokens } : {};
  return { layer: layer.index, head, ...cell, ...clamped };
}

/**
 * @param {number | null} n
 * @param {number} length
 */
function isInRange(n, length) {
  return n !== null && n >= 0 && n < length;
}

/**
 * The map data of the selected head; `mapInfo` is the response of the endpoint map_info.
 * @param {State} state
 * @param {MapInfo} mapInfo
 * @returns {MapData}
 */
export function headMapData(state, mapInfo, id = state.session) {
  const { session, layer, head } = selectHead(state, id);
  const tokens = selectTokens(session, layer);
  const hidden = hiddenKeys(state, layer, mapInfo);
  const headParams = { session: id, layer: layer.index, head, ...hidden };
  const name = `${state.stateVersion} ${id} ${layer.index} ${head} ${hidden.hidden_keys ?? ""}`;
  return {
    name,
    tileRequest: (level, row, column) => ({
      key: `${name} ${level} ${row} ${column}`,
      name: "tile",
      params: { ...headParams, level, row, column },
    }),
    numQueries: mapInfo.num_queries,
    numKeys: mapInfo.num_keys,
    numLevels: mapInfo.num_levels,
    tileSize: mapInfo.tile_size,
    finestLevel: mapInfo.finest_level ?? 0,
    sampledRows: mapInfo.sampled_rows ?? null,
    rowTokens: tokens.rowLabels,
    columnTokens: tokens.columnLabels,
  };
}

/**
 * Whether the sink is hidden: the option is on, and the head has a sink that can be hidden.
 * @param {State} state
 * @param {Layer} layer
 * @param {MapInfo} mapInfo
 */
export function isSinkHidden(state, layer, mapInfo) {
  return Boolean(state.hideSink && layer.can_hide_keys && mapInfo.sink);
}

/**
 * The parameter that hides the sink in requests; empty if it is visible.
 * @param {State} state
 * @param {Layer} layer
 * @param {MapInfo} mapInfo
 * @returns {{hidden_keys?: number[]}}
 */
export function hiddenKeys(state, layer, mapInfo) {
  return mapInfo.sink && isSinkHidden(state, layer, mapInfo) ? { hidden_keys: [mapInfo.sink.key] } : {};
}
