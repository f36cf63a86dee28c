import assert from "node:assert/strict";
import { test } from "node:test";
import { cssColor, polarCoordinates, polarVector, swapRows } from "../../../tools/docs/guide/frontend/color-wheel.js";

test("angles are counterclockwise from the right", () => {
  const [x, y] = polarVector(90, 2);
  assert.ok(Math.abs(x) < 1e-12);
  assert.equal(y, 2);
});

test("coordinates are rounded, positive and bounded", () => {
  assert.deepEqual(polarCoordinates(0, -3.04, 10), { angle: 270, length: 3 });
  assert.deepEqual(polarCoordinates(-30, 0, 10), { angle: 180, length: 10 });
  assert.deepEqual(polarCoordinates(1, -0.001, 10), { angle: 0, length: 1 });
});

test("a vector has the coordinates that it is made from", () => {
  for (const angle of [0, 45, 133, 359])
    assert.deepEqual(polarCoordinates(...polarVector(angle, 4.2), 10), { angle, length: 4.2 });
});

test("colors are whole numbers", () => {
  assert.equal(cssColor([12.4, 99.5, 255]), "rgb(12 100 255)");
});

test("two rows are exchanged, and the matrix itself does not change", () => {
  const rows = [[1], [2], [3]];
  assert.deepEqual(swapRows(rows, 0, 2), [[3], [2], [1]]);
  assert.deepEqual(rows, [[1], [2], [3]]);
});
