import assert from "node:assert/strict";
import { test } from "node:test";
import {
  colorScale,
  LOG_SCALE_DECADES,
  signedScale,
  sqrtScale,
} from "../../../../../src/regard/explorer/frontend/lib/color/color-scale.js";

test("a linear scale maps the maximum to 1", () => {
  const scale = colorScale("linear", 0.5);
  assert.deepEqual([0, 0.25, 0.5].map(scale), [0, 0.5, 1]);
});

test("a logarithmic scale maps each decade to an equal part", () => {
  const scale = colorScale("log", 1);
  assert.equal(scale(1), 1);
  assert.ok(Math.abs(scale(0.1) - (1 - 1 / LOG_SCALE_DECADES)) < 1e-12);
  assert.equal(scale(10 ** -(LOG_SCALE_DECADES + 1)), 0);
  assert.equal(scale(0), 0);
});

test("a rank scale gives the lowest value a faint color and the highest the strongest", () => {
  const scale = colorScale("rank", 1, [new Float32Array([0.5, 0.1, 0, 1])]);
  assert.equal(scale(0), 0);
  assert.ok(scale(0.1) > 0 && scale(0.1) < scale(0.5) && scale(0.5) < scale(1));
  assert.equal(scale(0.1), 0.04);
  assert.ok(scale(1) <= 1);
});

test("without a positive maximum, every color is the faintest", () => {
  for (const name of ["linear", "log", "rank"]) assert.equal(colorScale(name, 0, [[1]])(1), 0);
  assert.equal(colorScale("linear", NaN)(1), 0);
});

test("a signed scale is symmetric around one half", () => {
  for (const name of ["linear", "log", "rank"]) {
    const scale = signedScale(name, 2);
    assert.deepEqual([-2, 0, 2].map(scale), [0, 0.5, 1]);
    assert.ok(Math.abs(scale(1) + scale(-1) - 1) < 1e-12);
  }
});

test("the square-root scale is clamped to 0 and 1", () => {
  assert.deepEqual([-1, 0, 0.25, 1, 2].map(sqrtScale), [0, 0, 0.5, 1, 1]);
});
