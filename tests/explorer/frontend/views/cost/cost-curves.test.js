import assert from "node:assert/strict";
import { test } from "node:test";
import { costCurves } from "../../../../../src/regard/explorer/frontend/views/cost/cost-curves.js";

const MODEL = { embed_dim: 768, num_heads: 12, num_layers: 12, ffn_dim: 3072, gated: false };
const timing = (mechanism, seq_len, seconds, changes = {}) => ({
  mechanism,
  seq_len,
  seconds,
  num_heads: 8,
  head_dim: 64,
  ...changes,
});
const PARTS = {
  response: {
    seq_lens: [10, 20],
    curves: [{ name: "linear", flops: [1, 2], bytes: [3, 4] }],
    non_attention: { name: "rest", flops: [5, 6] },
  },
  mechanisms: [{ name: "softmax" }, { name: "linear" }],
  timings: [timing("linear", 512, 0.2), timing("linear", 256, 0.1), timing("softmax", 256, 1)],
  selected: ["linear"],
  model: MODEL,
};

test("curves have a point for each length, and the rest of the model is dashed", () => {
  const [linear, rest] = costCurves({ ...PARTS, quantity: "flops" }, "light");
  assert.deepEqual(linear.points, [
    [10, 1],
    [20, 2],
  ]);
  assert.deepEqual([rest.title, rest.style, rest.points[1]], ["rest", "dashed", [20, 6]]);
});

test("a quantity that the rest of the model does not have shows mechanisms only", () => {
  assert.deepEqual(
    costCurves({ ...PARTS, quantity: "bytes" }, "light").map(({ name }) => name),
    ["linear"],
  );
});

test("measured times are those of the selected mechanisms, in order of length", () => {
  const curves = costCurves({ ...PARTS, quantity: "seconds" }, "light");
  assert.deepEqual(
    curves.map(({ name, points }) => [name, points]),
    [
      [
        "linear",
        [
          [256, 0.1],
          [512, 0.2],
        ],
      ],
    ],
  );
});

test("a mechanism has the same color for every quantity", () => {
  const color = (quantity) => costCurves({ ...PARTS, quantity }, "dark")[0].color;
  assert.equal(color("flops"), color("seconds"));
});
