import assert from "node:assert/strict";
import { test } from "node:test";
import { derivativeNorm, entropy } from "../../../tools/docs/guide/frontend/saturation.js";

test("the entropy is 0 for one weight of 1, and the logarithm of the count for equal weights", () => {
  assert.equal(entropy([0, 1, 0]), 0);
  assert.ok(Math.abs(entropy([0.25, 0.25, 0.25, 0.25]) - Math.log(4)) < 1e-15);
});

test("the norm of the derivatives agrees with finite differences", () => {
  const scores = [0.5, -1, 2];
  const softmax = (values) => {
    const exps = values.map(Math.exp);
    const sum = exps.reduce((a, b) => a + b);
    return exps.map((x) => x / sum);
  };
  const step = 1e-6;
  let squares = 0;
  for (const [n] of scores.entries()) {
    const [high, low] = [step, -step].map((d) => softmax(scores.map((s, m) => (m === n ? s + d : s))));
    for (const [m, a] of high.entries()) squares += ((a - low[m]) / (2 * step)) ** 2;
  }
  assert.ok(Math.abs(derivativeNorm(softmax(scores)) - Math.sqrt(squares)) < 1e-9);
});

test("the norm is largest for two equal weights and 0 for a single one", () => {
  assert.equal(derivativeNorm([0.5, 0.5]), 0.5);
  assert.equal(derivativeNorm([0, 1, 0]), 0);
});
