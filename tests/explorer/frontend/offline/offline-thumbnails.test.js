import assert from "node:assert/strict";
import { test } from "node:test";
import { offlineThumbnails } from "../../../../src/regard/explorer/frontend/offline/offline-thumbnails.js";
import { makeLayer, makeSession } from "../example-session.js";

const SIZE = 50; // cells per side: 200 tokens at level 2
const data = Float32Array.from({ length: 2 * SIZE * SIZE }, (_, n) => n);
const thumbnails = { data, shape: [2, SIZE, SIZE] };
const layers = [makeLayer({ num_queries: 200, num_keys: 200, head_indices: [1, 3] })];
const RESPONSES = {
  thumbnails: { values: { heads: [1, 3], sampled_rows: 4 }, arrays: { mean: thumbnails, max: thumbnails } },
  state: { values: { sessions: [makeSession({ layers })] }, arrays: {} },
};
const stored = async (name) => RESPONSES[name] ?? null;
const HEAD = { session: 1, layer: 0, head: 3 };

test("the map of a head without tiles has the level of its thumbnail only", async () => {
  const { values } = await offlineThumbnails(stored, "map_info", HEAD);
  assert.deepEqual(values, {
    num_levels: 3,
    finest_level: 2,
    tile_size: 64,
    num_queries: 200,
    num_keys: 200,
    sink: null,
    sampled_rows: 4,
  });
});

test("the tile is the thumbnail of the head", async () => {
  const { arrays } = await offlineThumbnails(stored, "tile", { ...HEAD, level: 2, row: 0, column: 0 });
  assert.deepEqual(arrays.mean.shape, [SIZE, SIZE]);
  assert.equal(arrays.mean.data[0], SIZE * SIZE);
});

test("other levels, hidden keys, other heads and other endpoints have no response", async () => {
  assert.equal(await offlineThumbnails(stored, "tile", { ...HEAD, level: 1, row: 0, column: 0 }), null);
  assert.equal(await offlineThumbnails(stored, "map_info", { ...HEAD, hidden_keys: [0] }), null);
  assert.equal(await offlineThumbnails(stored, "map_info", { ...HEAD, head: 2 }), null);
  assert.equal(await offlineThumbnails(stored, "map_info", { ...HEAD, layer: 7 }), null);
  assert.equal(await offlineThumbnails(stored, "heads", HEAD), null);
});
