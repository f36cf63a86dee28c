import assert from "node:assert/strict";
import { test } from "node:test";
import {
  colorRamp,
  contrastingTextColor,
  curveColor,
  headColor,
  rampColor,
  rampGradient,
  rampOffset,
} from "../../../../../src/regard/explorer/frontend/lib/color/palettes.js";

const luma = (ramp, n) => 0.299 * ramp[3 * n] + 0.587 * ramp[3 * n + 1] + 0.114 * ramp[3 * n + 2];

test("the ink ramp gets darker in the light theme and lighter in the dark theme", () => {
  const [light, dark] = [colorRamp("ink", "light"), colorRamp("ink", "dark")];
  assert.equal(light.length, 3 * 256);
  assert.ok(luma(light, 0) > 240 && luma(light, 255) < 90);
  assert.ok(luma(dark, 0) < 40 && luma(dark, 255) > 180);
});

test("the lightness of the ink ramp is monotonic", () => {
  const ramp = colorRamp("ink", "light");
  for (let n = 8; n < 256; n += 8) assert.ok(luma(ramp, n) < luma(ramp, n - 8), `step ${n}`);
});

test("the ramp of differences is neutral in the middle and has different ends", () => {
  const ramp = colorRamp("difference", "light");
  const middle = [...ramp.slice(3 * 128, 3 * 128 + 3)];
  assert.ok(Math.max(...middle) - Math.min(...middle) < 8);
  assert.ok(ramp[2] > ramp[0], "negative differences are blue");
  assert.ok(ramp[3 * 255] > ramp[3 * 255 + 2], "positive differences are red");
});

test("offsets are clamped to the ramp", () => {
  assert.deepEqual([-1, 0, 0.5, 1, 2].map(rampOffset), [0, 0, 384, 765, 765]);
});

test("a color and a gradient are CSS", () => {
  const ramp = colorRamp("ink", "light");
  assert.equal(rampColor(ramp, 0), `rgb(${ramp[0]},${ramp[1]},${ramp[2]})`);
  const gradient = rampGradient(ramp, (t) => 1 - t);
  assert.ok(gradient.startsWith(`linear-gradient(to right, ${rampColor(ramp, 1)}`));
  assert.ok(gradient.endsWith(`${rampColor(ramp, 0)})`));
});

test("text is dark on light colors and light on dark colors", () => {
  const ramp = colorRamp("ink", "light");
  assert.notEqual(contrastingTextColor(ramp, 0), contrastingTextColor(ramp, 1));
  assert.equal(contrastingTextColor(ramp, 1), "#ffffff");
});

test("neighboring curves and heads have different colors", () => {
  for (const theme of ["light", "dark"]) {
    assert.equal(new Set([0, 1, 2, 3, 4, 5, 6, 7].map((n) => curveColor(n, theme))).size, 8);
    assert.equal(curveColor(8, theme), curveColor(0, theme));
    assert.equal(new Set([0, 1, 2, 3, 4, 5, 6, 7].map((n) => headColor(n, theme))).size, 8);
  }
});
