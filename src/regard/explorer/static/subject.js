// What the state is about: the recording, the layer and the tokens of its queries and keys.

/** The recording that is shown; undefined before there is one. */
export function shownOf(state, id = state.shown) {
  return state.world?.shown.find((each) => each.id === id);
}

/** The layer of a recording by its number; the first if it has none such. */
export function layerOf(state, id = state.shown) {
  const shown = shownOf(state, id);
  return shown?.layers.find((each) => each.number === state.layer) ?? shown?.layers[0];
}

const labelLists = new WeakMap(); // of texts with parts of characters

/** A label for each token of a text: the token, or the character that it is a part of with its bytes. */
export function labelsOf(text) {
  if (!text.parts || !Object.keys(text.parts).length) return text.tokens;
  if (!labelLists.has(text)) labelLists.set(text, text.tokens.map((token, n) => text.parts[n]?.[0] ?? token));
  return labelLists.get(text);
}

/**
 * The tokens of a layer's queries and keys, their labels, and the numbers of their words. Tokens joined are the text: of
 * tokens that share a character, the first one has it. Labels name tokens one by one.
 * @returns {{rows: string[], columns: string[], rowLabels: string[], columnLabels: string[], rowWords: number[],
 *            columnWords: number[], crosses: boolean, first: number}}
 */
export function tokensOf(shown, layer) {
  const queries = shown.texts[layer.query_text];
  const keys = shown.texts[layer.key_text];
  const part = (list) => list.slice(layer.first, layer.first + layer.queries);
  return {
    rows: part(queries.tokens),
    columns: keys.tokens,
    rowLabels: part(labelsOf(queries)),
    columnLabels: labelsOf(keys),
    rowParts: layer.first ? {} : (queries.parts ?? {}),
    columnParts: keys.parts ?? {},
    rowWords: part(queries.words),
    columnWords: keys.words,
    crosses: layer.query_text !== layer.key_text,
    first: layer.first,
  };
}

/** The layer and head that a state means, made to fit what is shown. */
export function fitting(state) {
  const layer = layerOf(state);
  if (!layer) return {};
  const head = layer.heads.includes(state.head) ? state.head : layer.heads[0];
  const isIn = (n, length) => n !== null && n >= 0 && n < length;
  const isInside = isIn(state.query, layer.queries) && isIn(state.key, layer.keys);
  const cell = isInside ? { query: state.query, key: state.key } : { query: null, key: null };
  const locked = state.locked.filter((token) => token < Math.max(layer.keys, layer.queries));
  return { layer: layer.number, head, ...cell, ...(locked.length < state.locked.length ? { locked } : {}) };
}

/** What a map of the state's head shows; `levels` is the answer to the question of that name. */
export function subjectOf(state, levels, id = state.shown) {
  const shown = shownOf(state, id);
  const layer = layerOf(state, id);
  const tokens = tokensOf(shown, layer);
  const hide = hiding(state, layer, levels) ? { hide: [levels.sink.key] } : {};
  const about = { shown: id, layer: layer.number, head: state.head, ...hide };
  const name = `${state.epoch} ${id} ${layer.number} ${state.head} ${hide.hide ?? ""}`;
  const question = (level, row, column) => ({
    key: `${name} ${level} ${row} ${column}`,
    name: "tile",
    params: { ...about, level, row, column },
  });
  return {
    name,
    question,
    queries: levels.queries,
    keys: levels.keys,
    levels: levels.levels,
    finest: levels.finest ?? 0,
    sampled: levels.sampled ?? null,
    rowTokens: tokens.rowLabels,
    columnTokens: tokens.columnLabels,
  };
}

/** Whether the sink is hidden: if that was asked for and there is one. */
export function hiding(state, layer, levels) {
  return Boolean(state.hide && layer.can_hide && levels.sink);
}
