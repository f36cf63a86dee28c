import assert from "node:assert/strict";
import { test } from "node:test";
import { ColorMapping } from "../../../../../src/regard/explorer/frontend/lib/color/color-mapping.js";

function makeTile(maximum) {
  const values = new Float32Array([0, maximum / 2, maximum]);
  return { mean: values, max: values, rows: 1, columns: 3, maximum: { mean: maximum, max: 2 * maximum } };
}

test("the maximum of a level is the largest of its tiles, for each pooling", () => {
  const mapping = new ColorMapping();
  for (const maximum of [0.25, 0.5, 0.125]) mapping.trackMaximum(1, makeTile(maximum));
  assert.equal(mapping.maximum(1), 0.5);
  mapping.options.pooling = "max";
  assert.equal(mapping.maximum(1), 1);
  assert.equal(mapping.maximum(0), 0);
});

test("another head starts with new maxima", () => {
  const mapping = new ColorMapping();
  mapping.trackMaximum(0, makeTile(0.5));
  mapping.clearMaxima();
  assert.equal(mapping.maximum(0), 0);
});

test("the colors of a level are relative to its maximum", () => {
  const mapping = new ColorMapping();
  mapping.trackMaximum(0, makeTile(0.5));
  const colors = mapping.forLevel({ name: "map" }, 0, []);
  assert.equal(colors.toFraction(0.25), 0.5);
  assert.equal(colors.signed, false);
});

test("equal options share one mapping, and a larger maximum makes another", () => {
  const mapping = new ColorMapping();
  mapping.trackMaximum(0, makeTile(0.5));
  const first = mapping.forLevel({ name: "map" }, 0, []);
  assert.equal(mapping.forLevel({ name: "map" }, 0, []), first);
  mapping.trackMaximum(0, makeTile(0.75));
  assert.notEqual(mapping.forLevel({ name: "map" }, 0, []), first);
});

test("differences have the ramp of differences", () => {
  const mapping = new ColorMapping();
  mapping.trackMaximum(0, makeTile(0.5));
  const colors = mapping.forLevel({ name: "map", signed: true }, 0, []);
  assert.deepEqual([-0.5, 0, 0.5].map(colors.toFraction), [0, 0.5, 1]);
});

test("ranks use the values of the tiles in view", () => {
  const mapping = new ColorMapping();
  mapping.options.scale = "rank";
  const tile = makeTile(0.5);
  mapping.trackMaximum(0, tile);
  const colors = mapping.forLevel({ name: "map" }, 0, [{ name: "0.0", tile }]);
  assert.equal(colors.toFraction(0.25), 0.04);
  assert.ok(colors.toFraction(0.5) > 0.5);
});
