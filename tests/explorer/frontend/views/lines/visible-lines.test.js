import assert from "node:assert/strict";
import { test } from "node:test";
import {
  clampLineEnd,
  drawingOrder,
  selectedHeads,
  visibleRange,
} from "../../../../../src/regard/explorer/frontend/views/lines/visible-lines.js";
import { makeLayer, makeSession, makeState } from "../../example-session.js";

const longState = (changes) =>
  makeState(changes, [makeSession({ layers: [makeLayer({ num_queries: 90, num_keys: 100 })] })]);

test("the drawn heads are those of the layer, else the open one", () => {
  assert.deepEqual(selectedHeads(makeState({ lineHeads: [0, 2, 9] })), [0, 2]);
  assert.deepEqual(selectedHeads(makeState({ lineHeads: [9] })), [0]);
  assert.deepEqual(selectedHeads(makeState()), [1]);
});

test("a short text fills the area", () => {
  const range = visibleRange(makeState(), 7 * 25 + 12);
  assert.deepEqual([range.rowHeight, range.numRows, range.start, range.queryEnd], [25, 7, 0, 7]);
});

test("rows have a minimum and a maximum height", () => {
  assert.equal(visibleRange(longState(), 600).rowHeight, 21);
  assert.equal(visibleRange(makeState(), 5000).rowHeight, 28);
});

test("a long text is scrolled, but not beyond its end", () => {
  const range = visibleRange(longState({ lineStart: 1000 }), 21 * 20 + 12);
  assert.deepEqual([range.numRows, range.start, range.queryEnd], [20, 80, 90]);
  assert.equal(visibleRange(longState({ lineStart: 5 }), 21 * 20 + 12).start, 5);
});

test("a low area shows six rows", () => assert.equal(visibleRange(longState(), 40).numRows, 6));

test("the strongest line is drawn last", () => {
  const weight = { data: Float32Array.of(0.5, 0.1, 0.9), shape: [3] };
  assert.deepEqual(drawingOrder({ weight }), [1, 0, 2]);
});

test("a line to an invisible key ends just outside", () => {
  assert.deepEqual(
    [-500, 50, 900].map((y) => clampLineEnd(y, 100)),
    [-28, 50, 128],
  );
});
