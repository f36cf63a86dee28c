import assert from "node:assert/strict";
import { test } from "node:test";
import {
  fromCenterOutward,
  locateCell,
  partOfCoarserTile,
  visibleTiles,
} from "../../../../../src/regard/explorer/frontend/charts/map/tile-grid.js";
import { Viewport } from "../../../../../src/regard/explorer/frontend/charts/map/viewport.js";

function makeView(pixelsPerToken, left = 0, top = 0) {
  const sizes = { queries: 1000, keys: 1000, levels: 3, width: 300, height: 300 };
  return Object.assign(new Viewport(), sizes, { pixelsPerToken, left, top });
}

test("the fitted map needs every tile of its level", () => {
  assert.equal(visibleTiles(makeView(0.3), 256, 0).length, 16);
  assert.equal(visibleTiles(makeView(0.3), 256, 1).length, 4);
  assert.deepEqual(visibleTiles(makeView(0.3), 256, 2), [{ level: 2, row: 0, column: 0 }]);
});

test("a zoomed map needs the tiles that it shows", () => {
  assert.deepEqual(visibleTiles(makeView(10, 240, 600), 256, 0), [
    { level: 0, row: 2, column: 0 },
    { level: 0, row: 2, column: 1 },
  ]);
});

test("tiles in the center are requested first", () => {
  const view = makeView(0.4, 0, 0); // the center is the token 375
  const tiles = fromCenterOutward(view, 256, visibleTiles(view, 256, 0));
  assert.deepEqual(tiles[0], { level: 0, row: 1, column: 1 });
  assert.deepEqual(tiles.at(-1), { level: 0, row: 2, column: 2 });
});

test("a weight is in a cell of a tile at each level", () => {
  assert.deepEqual(locateCell(300, 5, 256, 0), { position: { level: 0, row: 1, column: 0 }, i: 44, j: 5 });
  assert.deepEqual(locateCell(300, 5, 256, 1), { position: { level: 1, row: 0, column: 0 }, i: 150, j: 2 });
  assert.deepEqual(locateCell(300, 65, 64, 0), { position: { level: 0, row: 4, column: 1 }, i: 44, j: 1 });
});

test("a tile is a part of a coarser tile", () => {
  const tile = { level: 0, row: 3, column: 2 };
  assert.deepEqual(partOfCoarserTile(tile, 0, 256), { position: tile, x: 0, y: 0, side: 256 });
  assert.deepEqual(partOfCoarserTile(tile, 1, 256), {
    position: { level: 1, row: 1, column: 1 },
    x: 0,
    y: 128,
    side: 128,
  });
});
