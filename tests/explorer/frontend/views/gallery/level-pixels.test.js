import assert from "node:assert/strict";
import { test } from "node:test";
import { levelPixels } from "../../../../../src/regard/explorer/frontend/views/gallery/level-pixels.js";

const ramp = (first) => Uint8ClampedArray.from({ length: 768 }, (_, n) => (n % 3 === 0 ? first : Math.floor(n / 3)));

test("a weight of 0 is transparent, and the strongest weights have the ends of the ramps", () => {
  const pixels = levelPixels([0, 127, 254], ramp(10), ramp(20));
  assert.deepEqual([...pixels], [0, 0, 0, 0, 10, 255, 255, 255, 20, 255, 255, 255]);
});

test("the faintest weight differs from 0, and stronger weights have later colors", () => {
  const pixels = levelPixels([1, 64, 128, 190], ramp(10), ramp(20));
  assert.deepEqual([...pixels.slice(0, 4)], [10, 13, 13, 255]);
  assert.ok(pixels[5] > 13 && pixels[5] < 255);
  assert.ok(pixels[9] > 128 && pixels[9] < pixels[13]);
});
