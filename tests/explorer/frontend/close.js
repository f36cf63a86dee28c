// Comparison of responses of the page with those of Python.

import assert from "node:assert/strict";

const TOLERANCE = 2e-6; // weights are float32

/** Compares numbers up to rounding, and everything else exactly; fields that only one side has may be left out. */
export function assertClose(actual, expected, path = "response") {
  if (typeof expected === "number") {
    assert.ok(
      Math.abs(actual - expected) <= TOLERANCE * Math.max(1, Math.abs(expected)),
      `${path}: ${actual} is not ${expected}`,
    );
  } else if (Array.isArray(expected)) {
    assert.equal(actual.length, expected.length, path);
    for (const [n, value] of expected.entries()) assertClose(actual[n], value, `${path}[${n}]`);
  } else if (expected !== null && typeof expected === "object") {
    for (const [name, value] of Object.entries(expected)) assertClose(actual[name], value, `${path}.${name}`);
  } else assert.equal(actual ?? null, expected, path);
}
