import assert from "node:assert/strict";
import { test } from "node:test";
import { TileCache } from "../../../../src/regard/explorer/frontend/transport/tile-cache.js";

const TILE_BYTES = 2 * 16 + 256 * 256 * 4; // two arrays of four numbers, and the painted tile
const tile = (key) => ({ key, name: "tile", params: { key } });
const settle = () => new Promise((resolve) => setImmediate(resolve));

/** A source whose requests wait until `respond` or `fail`. */
function manualSource() {
  const waiting = new Map();
  const request = (_name, { key }, signal) =>
    new Promise((resolve, reject) => {
      waiting.set(key, { resolve, reject, signal });
    });
  const respond = async (key, data = [1, -3, 2, 0]) => {
    const mean = { data: Float32Array.from(data), shape: [2, 2] };
    waiting.get(key).resolve({ values: {}, arrays: { mean } });
    await settle();
  };
  const fail = async (key, error) => {
    waiting.get(key).reject(error);
    await settle();
  };
  return { waiting, request, respond, fail };
}

test("a tile is cached with its size and its largest absolute value", async () => {
  const source = manualSource();
  const cache = new TileCache(source);
  const errors = [];
  cache.setViewerTiles({}, [tile("a")], (error) => errors.push(error));
  assert.equal(cache.get("a"), null);
  await source.respond("a");
  const { rows, columns, maximum, mean, max } = cache.get("a");
  assert.deepEqual([rows, columns, maximum], [2, 2, { mean: 3, max: 3 }]);
  assert.equal(mean, max);
  assert.deepEqual(errors, [null]);
});

test("at most four tiles are requested at a time, in order", async () => {
  const source = manualSource();
  new TileCache(source).setViewerTiles({}, ["a", "b", "c", "d", "e", "f"].map(tile), () => {});
  assert.deepEqual([...source.waiting.keys()], ["a", "b", "c", "d"]);
  await source.respond("b");
  assert.deepEqual([...source.waiting.keys()], ["a", "b", "c", "d", "e"]);
});

test("a tile that no viewer needs any more is cancelled", async () => {
  const source = manualSource();
  const cache = new TileCache(source);
  const [first, second] = [{}, {}];
  cache.setViewerTiles(first, [tile("a"), tile("b")], () => {});
  cache.setViewerTiles(second, [tile("b")], () => {});
  cache.setViewerTiles(first, [], () => {});
  assert.ok(source.waiting.get("a").signal.aborted);
  assert.ok(!source.waiting.get("b").signal.aborted);
  cache.removeViewer(second);
  assert.ok(source.waiting.get("b").signal.aborted);
  await source.respond("a");
  assert.equal(cache.get("a"), null);
});

test("a failed tile is reported once and not requested again", async () => {
  const source = manualSource();
  const cache = new TileCache(source);
  const errors = [];
  const viewer = {};
  cache.setViewerTiles(viewer, [tile("a")], (error) => errors.push(error?.message ?? null));
  await source.fail("a", new Error("no tile"));
  source.waiting.clear();
  cache.setViewerTiles(viewer, [tile("a")], () => {});
  assert.deepEqual(errors, ["no tile"]);
  assert.equal(source.waiting.size, 0);
});

test("the least recently used tile is dropped", async () => {
  const source = manualSource();
  const cache = new TileCache(source, 2 * TILE_BYTES);
  cache.setViewerTiles({}, ["a", "b", "c"].map(tile), () => {});
  await source.respond("a");
  await source.respond("b");
  cache.get("a");
  await source.respond("c");
  assert.deepEqual(
    ["a", "b", "c"].map((key) => cache.get(key) !== null),
    [true, false, true],
  );
  assert.equal(cache.bytes, 2 * TILE_BYTES);
});

test("a tile larger than the limit is cached alone", async () => {
  const source = manualSource();
  const cache = new TileCache(source, 10);
  cache.setViewerTiles({}, ["a", "b"].map(tile), () => {});
  await source.respond("a");
  await source.respond("b");
  assert.equal(cache.get("a"), null);
  assert.ok(cache.get("b"));
});
