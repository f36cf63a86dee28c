// From a weight to a share of the palette: in proportion, by its logarithm, or by its rank among those in view.

const DECADES = 4; // a logarithmic scale shows weights down to a ten-thousandth of the largest
const BINS = 512;
const SMALLEST = 1e-9;

/**
 * @param {"linear"|"log"|"rank"} name
 * @param {number} top the largest value there is
 * @param {Iterable<ArrayLike<number>>} values those that are ranked
 * @returns {(weight: number) => number}
 */
export function scaleOf(name, top, values = []) {
  if (!(top > 0)) return () => 0;
  if (name === "log") return (w) => (w > 0 ? Math.max(0, 1 + Math.log10(w / top) / DECADES) : 0);
  if (name === "rank") return ranks(top, values);
  return (w) => w / top;
}

/** A scale for signed differences: 0.5 is none. */
export function signedScale(name, top) {
  const size = scaleOf(name === "rank" ? "linear" : name, top);
  return (w) => 0.5 + 0.5 * Math.sign(w) * size(Math.abs(w));
}

/** Shares of the values below a weight, from a histogram of their logarithms. Zeros are not counted. */
function ranks(top, values) {
  const counts = new Float64Array(BINS + 1);
  const low = Math.log(SMALLEST);
  const step = (Math.log(top) - low) / BINS;
  const bin = (w) => Math.min(BINS, Math.max(0, Math.ceil((Math.log(w) - low) / step)));
  for (const some of values) for (const w of some) if (w > 0) counts[bin(w)] += 1;
  for (let n = 1; n <= BINS; n += 1) counts[n] += counts[n - 1];
  const all = counts[BINS] || 1;
  return (w) => (w > 0 ? 0.04 + (0.96 * counts[bin(w)]) / all : 0);
}
