import assert from "node:assert/strict";
import { test } from "node:test";
import { largestWeights } from "../../../../src/regard/explorer/frontend/widgets/largest-weights.js";

const texts = (items) => items.map(({ text }) => text);

test("weights are in descending order, without zeros", () => {
  assert.deepEqual(texts(largestWeights([0.1, 0, 0.5, 0.4], ["a", "b", "c", "d"], null)), ["c", "d", "a"]);
});

test("tokens of one word are summed", () => {
  const items = largestWeights([0.2, 0.25, 0.3, 0.25], ["cap", "tain", " saw", " it"], [0, 0, 1, 2]);
  assert.deepEqual(items[0], { value: 0.45, text: "captain", first: 0, last: 1 });
});

test("at most nine items are listed", () => {
  assert.equal(largestWeights(new Float32Array(20).fill(0.05), [], null).length, 9);
});

test("very small weights are left out after the third", () => {
  const items = largestWeights([0.9, 1e-6, 1e-7, 1e-8, 1e-9], ["a", "b", "c", "d", "e"], null);
  assert.deepEqual(texts(items), ["a", "b", "c"]);
});
