import assert from "node:assert/strict";
import { test } from "node:test";
import {
  counterpartHead,
  fractionDifferenceMap,
  selectOtherSession,
  weightDifferenceMap,
} from "../../../../../src/regard/explorer/frontend/views/compare/difference-maps.js";
import { makeSession, makeState } from "../../example-session.js";

const SESSIONS = [makeSession(), makeSession({ id: 2 }), makeSession({ id: 3 })];
const MAP_INFO = { num_queries: 7, num_keys: 7, num_levels: 1, tile_size: 256, sink: null };

test("the other session is the selected one, else the first other one", () => {
  assert.equal(selectOtherSession(makeState({ otherSession: 3 }, SESSIONS)).id, 3);
  assert.equal(selectOtherSession(makeState({ otherSession: 1 }, SESSIONS)).id, 2);
  assert.equal(selectOtherSession(makeState()), null);
});

test("the counterpart of a head has the same indices where they exist", () => {
  const other = makeSession();
  assert.deepEqual(counterpartHead(other, { layer: 2, head: 3 }), { layer: 2, head: 3 });
  assert.deepEqual(counterpartHead(other, { layer: 2, head: 0 }), { layer: 2, head: 1 });
  assert.deepEqual(counterpartHead(other, { layer: 5, head: 2 }), { layer: 0, head: 2 });
});

test("texts of different lengths are compared on one grid", () => {
  const map = fractionDifferenceMap(makeState(), 2, { layer: 2, head: 3 });
  assert.deepEqual([map.numQueries, map.numKeys, map.numLevels, map.signed], [16, 16, 1, true]);
  assert.deepEqual([map.rowTokens[0], map.rowTokens[8]], ["0%", "50%"]);
  const { name, params } = map.tileRequest(0, 0, 0);
  assert.equal(name, "difference_map");
  assert.deepEqual([params.layer, params.head, params.other_layer, params.other_head], [0, 1, 2, 3]);
});

test("texts of equal lengths are compared weight by weight", () => {
  const map = weightDifferenceMap(makeState(), MAP_INFO, 2);
  const { name, params } = map.tileRequest(0, 1, 2);
  assert.equal(name, "difference_tile");
  assert.deepEqual(params, { session: 1, other_session: 2, layer: 0, head: 1, level: 0, row: 1, column: 2 });
  assert.notEqual(map.name, weightDifferenceMap(makeState({ head: 2 }), MAP_INFO, 2).name);
});
