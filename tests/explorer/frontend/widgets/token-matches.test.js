import assert from "node:assert/strict";
import { test } from "node:test";
import { INITIAL_STATE } from "../../../../src/regard/explorer/frontend/state/store.js";
import { findTokens, matchingTokens } from "../../../../src/regard/explorer/frontend/widgets/token-matches.js";
import { makeLayer, makeSession, makeState } from "../example-session.js";

test("a match may span several tokens", () => {
  assert.deepEqual(matchingTokens([" cap", "tain", " cap"], "captain"), [0]);
  assert.deepEqual(matchingTokens([" cap", "tain", " cap"], "cap"), [0, 2]);
});

test("a token with several matches is listed once", () => {
  assert.deepEqual(matchingTokens(["aaa", "ba"], "a"), [0, 1]);
});

test("matches ignore case and surrounding spaces", () => {
  assert.deepEqual(findTokens(makeState(), " THE "), [
    [0, 0],
    [4, 4],
  ]);
  assert.deepEqual(findTokens(makeState(), "sea"), []);
});

test("an empty text and a page without a session have no matches", () => {
  assert.deepEqual(findTokens(makeState(), "  "), []);
  assert.deepEqual(findTokens(INITIAL_STATE, "a"), []);
});

test("the key of a query is its own token", () => {
  const layers = [makeLayer({ query_offset: 4, num_queries: 3 })];
  assert.deepEqual(findTokens(makeState({}, [makeSession({ layers })]), "whale"), [[2, 6]]);
});

test("in cross-attention, keys are searched", () => {
  const texts = [makeSession().texts[0], { name: "source", tokens: ["x", "y"], word_ids: [0, 1] }];
  const layers = [makeLayer({ key_text: 1, num_keys: 2 })];
  assert.deepEqual(findTokens(makeState({}, [makeSession({ texts, layers })]), "y"), [[1, 1]]);
});
