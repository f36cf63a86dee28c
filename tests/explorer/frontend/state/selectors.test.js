import assert from "node:assert/strict";
import { test } from "node:test";
import {
  clampSelection,
  effectiveScale,
  headMapData,
  hiddenKeys,
  isSinkHidden,
  selectHead,
  selectLayer,
  selectSession,
  selectTokens,
  tokenLabels,
} from "../../../../src/regard/explorer/frontend/state/selectors.js";
import { INITIAL_STATE } from "../../../../src/regard/explorer/frontend/state/store.js";
import { makeLayer, makeSession, makeState } from "../example-session.js";

const MAP_INFO = { num_queries: 7, num_keys: 7, num_levels: 1, tile_size: 256, sink: { key: 0, mass: 0.5 } };

test("before the first response there is no session and no layer", () => {
  assert.equal(selectSession(INITIAL_STATE), undefined);
  assert.equal(selectLayer(INITIAL_STATE), undefined);
  assert.throws(() => selectHead(INITIAL_STATE), /session must be open/);
});

test("a layer that the session does not have is its first layer", () => {
  assert.equal(selectLayer(makeState({ layer: 2 })).path, "layer.2");
  assert.equal(selectLayer(makeState({ layer: 1 })).path, "layer.0");
});

test("the session of another id is selected", () => {
  const sessions = [makeSession(), makeSession({ id: 4, title: "Boat" })];
  assert.equal(selectHead(makeState({}, sessions), 4).session.title, "Boat");
});

test("the tokens of a layer start at its first query", () => {
  const session = makeSession();
  const tokens = selectTokens(session, makeLayer({ query_offset: 4, num_queries: 3 }));
  assert.deepEqual(tokens.rows, [" the", " white", " whale"]);
  assert.deepEqual(tokens.rowWords, [3, 4, 5]);
  assert.equal(tokens.columns.length, 7);
  assert.ok(!tokens.isCrossAttention);
});

test("queries and keys of cross-attention have their own texts", () => {
  const other = { name: "source", tokens: ["x", "y"], word_ids: [0, 1] };
  const session = makeSession({ texts: [makeSession().texts[0], other] });
  const tokens = selectTokens(session, makeLayer({ key_text: 1, num_keys: 2 }));
  assert.deepEqual(tokens.columns, ["x", "y"]);
  assert.ok(tokens.isCrossAttention);
});

test("the label of a part of a character has its bytes", () => {
  const text = { name: "", tokens: ["🐋", ""], word_ids: [0, 0], partial_characters: { 1: ["🐋‹9F›", "9F"] } };
  assert.deepEqual(tokenLabels(text), ["🐋", "🐋‹9F›"]);
  assert.equal(tokenLabels(text), tokenLabels(text), "labels are computed once");
  assert.equal(tokenLabels({ ...text, partial_characters: {} }).length, 2);
});

test("a selection outside of the session is cleared", () => {
  const clamped = clampSelection(makeState({ layer: 9, head: 9, query: 7, key: 0, pinnedTokens: [1, 7] }));
  assert.deepEqual(clamped, { layer: 0, head: 0, query: null, key: null, pinnedTokens: [1] });
});

test("a selection inside of the session stays", () => {
  const clamped = clampSelection(makeState({ layer: 2, head: 3, query: 6, key: 0, pinnedTokens: [6] }));
  assert.deepEqual(clamped, { layer: 2, head: 3, query: 6, key: 0 });
  assert.deepEqual(clampSelection(INITIAL_STATE), {});
});

test("the automatic color scale is linear for short texts", () => {
  const long = makeSession({ layers: [makeLayer({ num_keys: 97 })] });
  assert.equal(effectiveScale(makeState()), "linear");
  assert.equal(effectiveScale(makeState({}, [long])), "log");
  assert.equal(effectiveScale(makeState({ scale: "rank" }, [long])), "rank");
});

test("the sink is hidden if the option is on and the head supports it", () => {
  const state = makeState({ hideSink: true });
  assert.ok(isSinkHidden(state, makeLayer(), MAP_INFO));
  assert.deepEqual(hiddenKeys(state, makeLayer(), MAP_INFO), { hidden_keys: [0] });
  assert.ok(!isSinkHidden(state, makeLayer({ can_hide_keys: false }), MAP_INFO));
  assert.deepEqual(hiddenKeys(makeState(), makeLayer(), MAP_INFO), {});
  assert.deepEqual(hiddenKeys(state, makeLayer(), { ...MAP_INFO, sink: null }), {});
});

test("a tile request names the head, and differs for other sessions, heads and hidden keys", () => {
  const request = (state) => headMapData(state, MAP_INFO).tileRequest(1, 2, 3);
  assert.deepEqual(request(makeState()).params, { session: 1, layer: 0, head: 1, level: 1, row: 2, column: 3 });
  const states = [{}, { head: 2 }, { stateVersion: 8 }, { hideSink: true }, { layer: 2, head: 3 }];
  assert.equal(new Set(states.map((changes) => request(makeState(changes)).key)).size, states.length);
  assert.deepEqual(request(makeState({ hideSink: true })).params.hidden_keys, [0]);
});
