import assert from "node:assert/strict";
import { test } from "node:test";
import {
  pinTokens,
  queriesAndKeys,
  tokenRange,
} from "../../../../../src/regard/explorer/frontend/views/text/token-selection.js";
import { makeLayer } from "../../example-session.js";

const pin = (pinnedTokens, tokens, add, side = "query") =>
  pinTokens({ pinnedTokens, pinnedSide: "query" }, side, tokens, add).pinnedTokens;

test("an item has the tokens from its first to its last", () => {
  assert.deepEqual(tokenRange({ text: "captain", first: 1, last: 3 }), [1, 2, 3]);
});

test("a click pins tokens, and unpins them again", () => {
  assert.deepEqual(pin([], [2], false), [2]);
  assert.deepEqual(pin([5], [2], false), [2]);
  assert.deepEqual(pin([2], [2], false), []);
  assert.deepEqual(pin([2, 5], [2], false), [2]);
});

test("a click with Shift adds tokens in order, and removes them again", () => {
  assert.deepEqual(pin([5], [2, 3], true), [2, 3, 5]);
  assert.deepEqual(pin([2, 3, 5], [2, 3], true), [5]);
});

test("tokens of the other text replace the pinned ones", () => {
  assert.deepEqual(pin([5], [2], true, "key"), [2]);
});

test("in self-attention, a token is a query and a key", () => {
  assert.deepEqual(queriesAndKeys(makeLayer(), { side: "query", tokens: [1, 3] }), { queries: [1, 3], keys: [1, 3] });
});

test("tokens before the first query and after the last key are left out", () => {
  const layer = makeLayer({ query_offset: 4, num_queries: 3, num_keys: 6 });
  assert.deepEqual(queriesAndKeys(layer, { side: "query", tokens: [3, 4, 6] }), { queries: [0, 2], keys: [3, 4] });
});

test("in cross-attention, a token is on one side", () => {
  const layer = makeLayer({ key_text: 1 });
  assert.deepEqual(queriesAndKeys(layer, { side: "query", tokens: [1] }), { queries: [1], keys: [] });
  assert.deepEqual(queriesAndKeys(layer, { side: "key", tokens: [1] }), { queries: [], keys: [1] });
});
