import assert from "node:assert/strict";
import { test } from "node:test";
import { parseMatrix, resizeMatrix } from "../../../../../src/regard/explorer/frontend/views/steps/parse-matrix.js";

const MATRIX = [
  [1, -2.5],
  [3, 0.001],
];
for (const text of [
  "1 -2.5\n3 1e-3",
  "1,-2.5;3,1e-3",
  "[[1, -2.5],\n [3, 0.001]]",
  "1\t-2.5\r\n3\t0.001\n",
  "(1 -2.5; 3 .001)",
]) {
  test(`${JSON.stringify(text)} is a matrix`, () => assert.deepEqual(parseMatrix(text), MATRIX));
}
for (const text of ["", "5", "1 2\n3", "1 x", "1 Infinity", "a b\nc d"]) {
  test(`${JSON.stringify(text)} is not a matrix`, () => assert.equal(parseMatrix(text), null));
}

test("added numbers are 0, and others stay", () => {
  assert.deepEqual(resizeMatrix(MATRIX, 3, 1), [[1], [3], [0]]);
  assert.deepEqual(resizeMatrix(MATRIX, 1, 3), [[1, -2.5, 0]]);
});
