// The pixels of a picture of weights. A level is 0 for a weight of exactly 0, 1 to 127 for positive and 128 to 254 for
// negative weights; it grows with the square root of the magnitude.

import { rampOffset } from "../../lib/color/palettes.js";

/** @import { Ramp } from "../../lib/types.js" */

const LEVELS = 127; // of each sign
const FAINTEST = 0.05; // fraction of the ramp: even a tiny weight differs from 0

/**
 * Red, green, blue and opacity of each level. A weight of 0 is transparent.
 * @param {ArrayLike<number>} levels
 * @param {Ramp} positive a ramp that begins at the background
 * @param {Ramp} negative a ramp whose middle is the background and whose end is the color of negative weights
 */
export function levelPixels(levels, positive, negative) {
  const pixels = new Uint8ClampedArray(4 * levels.length);
  for (let n = 0; n < levels.length; n += 1) {
    const level = levels[n];
    if (level === 0) continue;
    const isNegative = level > LEVELS;
    const strength = ((isNegative ? level - LEVELS : level) - 1) / (LEVELS - 1);
    const fraction = FAINTEST + (1 - FAINTEST) * strength;
    const ramp = isNegative ? negative : positive;
    const offset = rampOffset(isNegative ? 0.5 + fraction / 2 : fraction);
    pixels.set([ramp[offset], ramp[offset + 1], ramp[offset + 2], 255], 4 * n);
  }
  return pixels;
}
