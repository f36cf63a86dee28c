import assert from "node:assert/strict";
import { test } from "node:test";
import {
  axisLabels,
  labelText,
  shortLabel,
} from "../../../../../src/regard/explorer/frontend/charts/map/axis-labels.js";

const indices = (labels) => labels.map(({ n }) => n);

test("every token has a label if there is room", () => {
  assert.deepEqual(indices(axisLabels([3, 7], 11, [])), [3, 4, 5, 6]);
});

test("round indices have labels if there is no room", () => {
  assert.deepEqual(indices(axisLabels([0, 100], 2, [])), [0, 50]);
  assert.deepEqual(
    indices(axisLabels([130, 260], 5, [])),
    [130, 140, 150, 160, 170, 180, 190, 200, 210, 220, 230, 240, 250],
  );
});

test("a marked token replaces its neighbors, and has one label", () => {
  const labels = axisLabels([0, 200], 2, [52, 52, 300]);
  assert.deepEqual(labels, [
    { n: 0, isMarked: false },
    { n: 100, isMarked: false },
    { n: 150, isMarked: false },
    { n: 52, isMarked: true },
  ]);
});

test("a label is the token if it is legible or marked, else its index", () => {
  assert.equal(labelText([" a", " b"], 1, 12, false), "b");
  assert.equal(labelText([" a", " b"], 1, 2, true), "b");
  assert.equal(labelText([" a", " b"], 1, 2, false), "1");
  assert.equal(labelText([], 1, 12, false), "·");
});

test("a long token is cut", () => {
  assert.equal(shortLabel("a".repeat(40)), `${"a".repeat(15)}…`);
});
