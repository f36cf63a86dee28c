import assert from "node:assert/strict";
import { test } from "node:test";
import {
  interpolatePoints,
  isOnUnitSphere,
  maxRadius,
  project,
} from "../../../../../src/regard/explorer/frontend/views/theory/point-projection.js";

const POINTS = { data: Float32Array.of(1, 0, 0, 2, 0, 1, 4, 0), shape: [2, 2, 2] };

test("points move on a line between two moments", () => {
  assert.deepEqual(interpolatePoints(POINTS, 0), [
    [1, 0],
    [0, 2],
  ]);
  assert.deepEqual(interpolatePoints(POINTS, 0.5), [
    [0.5, 0.5],
    [2, 1],
  ]);
  assert.deepEqual(interpolatePoints(POINTS, 1), [
    [0, 1],
    [4, 0],
  ]);
});

test("points of the plane stay where they are", () => assert.deepEqual(project([3, -1], 0.7), [3, -1, 0]));

test("the projection of the sphere keeps lengths", () => {
  for (const rotation of [0, 1, 2.5]) {
    assert.ok(Math.abs(Math.hypot(...project([1, 2, -2], rotation)) - 3) < 1e-12);
  }
});

test("a full turn of the sphere changes nothing", () => {
  const [before, turned] = [0, 2 * Math.PI].map((rotation) => project([1, 2, 3], rotation));
  for (const n of [0, 1, 2]) assert.ok(Math.abs(before[n] - turned[n]) < 1e-12);
});

test("the radius is that of the farthest point, and positive", () => {
  assert.equal(maxRadius(POINTS), 4);
  assert.equal(maxRadius({ data: new Float32Array(4), shape: [1, 2, 2] }), 1);
});

test("points on the unit circle are recognized", () => {
  assert.ok(isOnUnitSphere({ data: Float32Array.of(0.6, 0.8, 0, -1), shape: [1, 2, 2] }));
  assert.ok(!isOnUnitSphere(POINTS));
});
