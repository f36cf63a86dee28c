import assert from "node:assert/strict";
import { test } from "node:test";
import {
  normalizerStages,
  STAGE_OPERATIONS,
} from "../../../../src/regard/explorer/frontend/offline/stage-interpreter.js";

/** The value of one stage. */
function stage(tree, scores, constants = {}) {
  return normalizerStages({ constants, stage_specs: [{ name: "x", variable: "x", tree }] }, scores).x;
}
const SCORES = [
  [1, 2, 3],
  [0, -1, 5],
];

test("a stage may be a number, a constant or the scores", () => {
  assert.equal(stage(2, SCORES), 2);
  assert.equal(stage("n_k", SCORES), 3);
  assert.equal(stage("parameter", SCORES, { parameter: 1.5 }), 1.5);
  assert.equal(stage("scores", SCORES), SCORES);
});

test("reductions are along the keys", () => {
  assert.deepEqual(stage(["sum", "scores"], SCORES), [6, 4]);
  assert.deepEqual(stage(["mean", "scores"], SCORES), [2, 4 / 3]);
  assert.deepEqual(stage(["amax", "scores"], SCORES), [3, 5]);
  assert.deepEqual(stage(["amin", "scores"], SCORES), [1, -1]);
});

test("a column has a number for each query", () => {
  assert.deepEqual(stage(["sub", "scores", ["column", ["amax", "scores"]]], SCORES), [
    [-2, -1, 0],
    [-5, -6, 0],
  ]);
});

test("a list aligns with the keys", () => {
  assert.deepEqual(
    stage(
      ["add", "scores", ["sum", "scores"]],
      [
        [1, 2],
        [3, 4],
      ],
    ),
    [
      [4, 9],
      [6, 11],
    ],
  );
});

test("a missing limit of clamp is infinite", () => {
  assert.deepEqual(stage(["clamp", "scores", 0, null], SCORES), [
    [1, 2, 3],
    [0, 0, 5],
  ]);
  assert.deepEqual(stage(["clamp", "scores", null, 2], SCORES), [
    [1, 2, 2],
    [0, -1, 2],
  ]);
});

test("a stage may use earlier stages", () => {
  const specs = [
    { name: "exponentials", variable: "e", tree: ["exp", "scores"] },
    { name: "weights", variable: "w", tree: ["div", "e", ["column", ["sum", "e"]]] },
  ];
  const stages = normalizerStages({ constants: {}, stage_specs: specs }, [[0, 0, 0, 0]]);
  assert.deepEqual(Object.keys(stages), ["exponentials", "weights"]);
  assert.deepEqual(stages.weights, [[0.25, 0.25, 0.25, 0.25]]);
});

test("the threshold of sparsemax makes the weights sum to 1", () => {
  const [tau] = stage(["entmax_threshold"], [[3, 2.5, 0]], { parameter: 1 });
  assert.ok(Math.abs(tau - 2.25) < 1e-12);
  assert.deepEqual(stage(["entmax_threshold"], [[-Infinity, -Infinity]], { parameter: 1 }), [Infinity]);
});

test("the threshold of topk is between the k largest scores and the others", () => {
  assert.deepEqual(stage(["topk_threshold"], [[5, 1, 3, 2]], { k: 2 }), [2.5]);
  const [all] = stage(["topk_threshold"], [[5, 1]], { k: 2 });
  assert.ok(all < -3e38 && Number.isFinite(all));
  const [tied] = stage(["topk_threshold"], [[2, 2, 2]], { k: 1 });
  assert.ok(tied < -3e38, "equal scores stay together");
});

test("names of operations are unique", () => {
  assert.equal(new Set(STAGE_OPERATIONS).size, STAGE_OPERATIONS.length);
});
