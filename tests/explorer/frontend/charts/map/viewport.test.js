import assert from "node:assert/strict";
import { test } from "node:test";
import { Viewport } from "../../../../../src/regard/explorer/frontend/charts/map/viewport.js";

function makeView(changes = {}) {
  const view = Object.assign(new Viewport(), { queries: 100, keys: 200, levels: 3, width: 400, height: 400 }, changes);
  return view.fit();
}

test("the fitted view shows the whole map", () => {
  const view = makeView();
  assert.equal(view.pixelsPerToken, 2);
  assert.deepEqual(
    [view.rows, view.columns],
    [
      [0, 100],
      [0, 200],
    ],
  );
  assert.ok(view.isFitted);
});

test("cells of a small map have a maximum size", () => {
  assert.equal(makeView({ queries: 2, keys: 2 }).pixelsPerToken, 64);
});

test("a zoom keeps the point under the cursor", () => {
  const view = makeView().zoom(4, 100, 60);
  assert.equal(view.pixelsPerToken, 8);
  assert.equal(view.left + 100 / 8, 50);
  assert.equal(view.top + 60 / 8, 30);
  assert.ok(!view.isFitted);
});

test("a zoom is clamped to the whole map and to the largest cell", () => {
  assert.equal(makeView().zoom(0.01, 0, 0).pixelsPerToken, 2);
  assert.equal(makeView().zoom(1e6, 0, 0).pixelsPerToken, 96);
});

test("the view cannot be moved off the map", () => {
  const view = makeView().zoom(4, 0, 0);
  view.pan(1000, 1000);
  assert.deepEqual([view.left, view.top], [0, 0]);
  view.pan(-1e6, -1e6);
  assert.deepEqual(view.columns[1], 200);
  assert.deepEqual(view.rows[1], 100);
});

test("a pan moves by pixels", () => {
  const view = makeView().zoom(4, 200, 100);
  const { left, top } = view;
  view.pan(-16, -8);
  assert.deepEqual([view.left - left, view.top - top], [2, 1]);
});

test("a cell is centered, with another zoom if it is given", () => {
  const view = makeView().centerOn(50, 100, 16);
  assert.equal(view.left + view.width / 16 / 2, 100.5);
  assert.equal(view.top + view.height / 16 / 2, 50.5);
});

test("a hidden cell is scrolled into view by the smallest distance", () => {
  const view = makeView().centerOn(50, 100, 16);
  const { left } = view;
  view.reveal(50, 100);
  assert.equal(view.left, left);
  view.reveal(50, 120);
  assert.equal(view.columns[1], 121);
});

test("a point is the cell under it, or null outside", () => {
  const view = makeView();
  assert.deepEqual(view.cell(3, 5), { query: 2, key: 1 });
  assert.deepEqual(view.cell(399, 199), { query: 99, key: 199 });
  for (const [x, y] of [
    [-1, 5],
    [5, -1],
    [5, 201],
    [401, 5],
  ])
    assert.equal(view.cell(x, y), null);
});

test("the level is the finest one with at least one device pixel per cell", () => {
  const view = makeView({ queries: 1600, keys: 1600, levels: 9 });
  assert.equal(view.pixelsPerToken, 0.25);
  assert.equal(view.level(1), 2);
  assert.equal(view.level(2), 1);
  assert.equal(makeView({ queries: 1600, keys: 1600, levels: 2 }).level(1), 1);
  assert.equal(makeView().level(1), 0);
});
