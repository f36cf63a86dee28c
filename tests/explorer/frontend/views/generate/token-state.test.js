import assert from "node:assert/strict";
import { test } from "node:test";
import { tokenStateAtStep } from "../../../../../src/regard/explorer/frontend/views/generate/token-state.js";

test("tokens are input, generated, the query, generated now, or later", () => {
  const states = [0, 1, 2, 3, 4, 5, 6].map((token) => tokenStateAtStep(token, 5, 3));
  assert.deepEqual(states, ["", "", "", "generated", "query", "key", "future"]);
});

test("the query of the first step is the last input", () => {
  assert.deepEqual(
    [2, 3].map((token) => tokenStateAtStep(token, 3, 3)),
    ["query", "key"],
  );
});
