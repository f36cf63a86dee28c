import assert from "node:assert/strict";
import { test } from "node:test";
import {
  costCrossovers,
  mergeNearbyCrossovers,
} from "../../../../../src/regard/explorer/frontend/views/cost/cost-crossovers.js";

const CURVE = { name: "softmax", flops: [100, 400], bytes: [1, 1] };
const crossover = (seq_len, first = "softmax") => ({ first, second: "linear", seq_len, text: "cheaper" });
const mark = (seq_len, first) =>
  costCrossovers({ seq_lens: [10, 20], curves: [CURVE], crossovers: [crossover(seq_len, first)] })[0];

test("a crossover is on its curve, which is a line between logarithms", () => {
  assert.deepEqual(mark(10), { x: 10, y: 100, text: "10", description: "cheaper" });
  assert.ok(Math.abs(mark(Math.sqrt(200)).y - 200) < 1e-9);
});

test("a crossover outside of the curves, or of no curve, has no position", () => {
  assert.equal(mark(30).y, null);
  assert.equal(mark(15, "unknown").y, null);
});

test("a response without crossovers has no marks", () => {
  assert.deepEqual(costCrossovers({ seq_lens: [10, 20], curves: [CURVE] }), []);
});

test("marks that almost coincide are merged", () => {
  const marks = [
    { x: 1000, y: 10 },
    { x: 1010, y: 10.1 },
    { x: 1010, y: 20 },
    { x: 1100, y: 10 },
  ];
  assert.deepEqual(mergeNearbyCrossovers(marks), [marks[0], marks[2], marks[3]]);
});
