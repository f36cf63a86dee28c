// A session, its state and the numbers of Python, for the tests.

import { readFileSync } from "node:fs";
import { INITIAL_STATE } from "../../../src/regard/explorer/frontend/state/store.js";

/** The numbers that Python computes; see frontend_numbers.py. */
export const PYTHON = JSON.parse(readFileSync(new URL("./python-numbers.json", import.meta.url), "utf8"));

const TOKENS = [" The", " cap", "tain", " saw", " the", " white", " whale"];

/** A layer of self-attention over all tokens. */
export function makeLayer(changes = {}) {
  const layer = { index: 0, path: "layer.0", head_indices: [0, 1, 2], num_queries: 7, num_keys: 7, query_text: 0 };
  return { ...layer, key_text: 0, query_offset: 0, is_cross_attention: false, can_hide_keys: true, ...changes };
}

/** A session of one text and two layers. */
export function makeSession(changes = {}) {
  const text = { name: "text", tokens: TOKENS, word_ids: [0, 1, 1, 2, 3, 4, 5] };
  const layers = [makeLayer(), makeLayer({ index: 2, path: "layer.2", head_indices: [1, 3] })];
  return { id: 1, title: "Whale", text: TOKENS.join(""), model: "language", texts: [text], layers, ...changes };
}

/** The state with an open session. */
export function makeState(changes = {}, sessions = [makeSession()]) {
  return { ...INITIAL_STATE, serverState: { sessions, models: [] }, session: 1, layer: 0, head: 1, ...changes };
}
