// From a weight to a share of the palette: in proportion, by its logarithm, or by its rank among those in view.

const FAINTEST = 0.04; // share of the palette for the lowest rank
const DECADES = 4; // a logarithmic scale shows weights down to a ten-thousandth of the largest
const BITS = 15; // of a float32 that are left out: bins are at most 0.4 % wide, from the smallest float32 on

/**
 * @param {"linear"|"log"|"rank"} name
 * @param {number} top the largest value there is
 * @param {Iterable<ArrayLike<number>>} values those that are ranked
 * @returns {(weight: number) => number}
 */
export function scaleOf(name, top, values = []) {
  if (!(top > 0)) return () => 0;
  if (name === "log") return (w) => (w > 0 ? Math.max(0, 1 + Math.log10(w / top) / DECADES) : 0);
  if (name === "rank") return ranks(values);
  return (w) => w / top;
}

/** A scale for signed differences: 0.5 is none. */
export function signedScale(name, top) {
  const size = scaleOf(name === "rank" ? "linear" : name, top);
  return (w) => 0.5 + 0.5 * Math.sign(w) * size(Math.abs(w));
}

/**
 * A share of the palette by the number of positive values that are smaller: the lowest in view has the faintest color,
 * the highest the strongest. Values are counted in bins by their leading bits, which are in the order of their sizes.
 */
function ranks(values) {
  const below = new Float64Array(2 ** (32 - BITS - 1) + 1);
  const float = new Float32Array(1);
  const bits = new Uint32Array(float.buffer);
  const bin = (w) => {
    float[0] = w;
    return bits[0] >>> BITS;
  };
  let highest = 0;
  for (const some of values) {
    for (const w of some) {
      if (!(w > 0)) continue;
      below[bin(w) + 1] += 1;
      if (w > highest) highest = w;
    }
  }
  for (let n = 1; n < below.length; n += 1) below[n] += below[n - 1];
  const all = below[bin(highest)] || 1;
  return (w) => (w > 0 ? FAINTEST + ((1 - FAINTEST) * Math.min(all, below[bin(w)])) / all : 0);
}

/** The share of the palette for a weight on the scale that all heads have in common: its root, from 0 to 1. */
export function rootShare(weight) {
  return Math.sqrt(Math.min(1, Math.max(0, weight)));
}
