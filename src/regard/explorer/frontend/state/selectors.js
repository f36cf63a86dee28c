// Selectors: the session, the layer and the tokens that the state selects.

/** The open session; undefined if there is none. */
export function selectSession(state, id = state.session) {
  return state.serverState?.sessions.find((session) => session.id === id);
}

/** The selected layer of a session; its first layer if the session does not have the selected one. */
export function selectLayer(state, id = state.session) {
  const session = selectSession(state, id);
  return session?.layers.find(({ index }) => index === state.layer) ?? session?.layers[0];
}

const labelCache = new WeakMap(); // labels of texts with partial characters

/** A label for each token of a text: the token, or for a partial character the character with the token's bytes. */
export function tokenLabels(text) {
  if (!text.partial_characters || !Object.keys(text.partial_characters).length) return text.tokens;
  const labels = () => text.tokens.map((token, n) => text.partial_characters[n]?.[0] ?? token);
  if (!labelCache.has(text)) labelCache.set(text, labels());
  return labelCache.get(text);
}

/**
 * The tokens of a layer's queries (rows) and keys (columns), their labels, and their word ids. The joined tokens are
 * the text: the first of several tokens that share a character contains it. Labels identify single tokens.
 * @returns {{rows: string[], columns: string[], rowLabels: string[], columnLabels: string[], rowWords: number[],
 *            columnWords: number[], rowParts: Object, columnParts: Object, isCrossAttention: boolean,
 *            queryOffset: number}}
 */
export function selectTokens(session, layer) {
  const queries = session.texts[layer.query_text];
  const keys = session.texts[layer.key_text];
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

/** The selected layer, head, cell and tokens, clamped to the session. */
export function clampSelection(state) {
  const layer = selectLayer(state);
  if (!layer) return {};
  const head = layer.head_indices.includes(state.head) ? state.head : layer.head_indices[0];
  const isInRange = (n, length) => n !== null && n >= 0 && n < length;
  const isInside = isInRange(state.query, layer.num_queries) && isInRange(state.key, layer.num_keys);
  const cell = isInside ? { query: state.query, key: state.key } : { query: null, key: null };
  const pinnedTokens = state.pinnedTokens.filter((token) => token < Math.max(layer.num_keys, layer.num_queries));
  const clamped = pinnedTokens.length < state.pinnedTokens.length ? { pinnedTokens } : {};
  return { layer: layer.index, head, ...cell, ...clamped };
}

/** The map data of the selected head; `mapInfo` is the response of the endpoint map_info. */
export function headMapData(state, mapInfo, id = state.session) {
  const session = selectSession(state, id);
  const layer = selectLayer(state, id);
  const tokens = selectTokens(session, layer);
  const hidden = isSinkHidden(state, layer, mapInfo) ? { hidden_keys: [mapInfo.sink.key] } : {};
  const headParams = { session: id, layer: layer.index, head: state.head, ...hidden };
  const name = `${state.stateVersion} ${id} ${layer.index} ${state.head} ${hidden.hidden_keys ?? ""}`;
  const tileRequest = (level, row, column) => ({
    key: `${name} ${level} ${row} ${column}`,
    name: "tile",
    params: { ...headParams, level, row, column },
  });
  return {
    name,
    tileRequest,
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

/** Whether the sink is hidden: the option is on, and the head has a sink that can be hidden. */
export function isSinkHidden(state, layer, mapInfo) {
  return Boolean(state.hideSink && layer.can_hide_keys && mapInfo.sink);
}
