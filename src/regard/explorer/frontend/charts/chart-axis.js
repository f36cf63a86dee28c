// The axes of a chart: linear or logarithmic positions, and ticks.

/**
 * An axis from `low` to `high`: `at(value)` returns a position in pixels, `has(value)` whether it can be shown.
 * @typedef {{low: number, high: number, isLog: boolean, at: (value: number) => number,
 *            has: (value: number) => boolean}} Axis
 */

/**
 * An axis that contains all values.
 * @param {number[]} values
 * @param {boolean} isLog
 * @param {number} start position of the lower end, in pixels
 * @param {number} end position of the upper end, in pixels
 * @returns {Axis}
 */
export function createAxis(values, isLog, start, end) {
  /** @param {number} v */
  const has = (v) => Number.isFinite(v) && (!isLog || v > 0);
  const plottable = values.filter(has);
  const [low, high] = isLog ? logRange(plottable) : linearRange(plottable);
  const transform = isLog ? Math.log : Number;
  /** @param {number} v */
  const fraction = (v) => (transform(v) - transform(low)) / (transform(high) - transform(low));
  /** @param {number} v */
  const at = (v) => start + fraction(v) * (end - start);
  return { low, high, at, has, isLog };
}

/** @param {number[]} values */
function logRange(values) {
  if (!values.length) return [1, 10];
  const [low, high] = [Math.min(...values), Math.max(...values)];
  return low === high ? [low / 2, low * 2] : [low, high];
}

/**
 * The range of the values with a margin, so that no point is on the frame.
 * @param {number[]} values
 */
function linearRange(values) {
  if (!values.length) return [0, 1];
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const margin = high > low ? 0.04 * (high - low) : 0.1 * Math.abs(high) || 1;
  return [low >= 0 && low - margin < 0 ? Math.min(low, 0) : low - margin, high + margin];
}

/**
 * At most `maxTicks` round numbers for the ticks of an axis.
 * @param {Pick<Axis, "low" | "high" | "isLog">} axis
 * @param {number} maxTicks
 * @param {number} [base] of a logarithmic axis
 */
export function axisTicks({ low, high, isLog }, maxTicks, base = 10) {
  if (!isLog) return linearTicks(low, high, maxTicks);
  const first = Math.ceil(Math.log(low) / Math.log(base) - 1e-9);
  const last = Math.floor(Math.log(high) / Math.log(base) + 1e-9);
  if (last - first < 2 && base === 10) return logTicks(low, high, maxTicks);
  const step = Math.max(1, Math.ceil((last - first + 1) / maxTicks));
  const ticks = [];
  for (let n = first; n <= last; n += step) ticks.push(base ** n);
  return ticks;
}

/**
 * Ticks of an axis with less than two powers of ten: 1, 2 and 5 times each power; round numbers on a very short axis.
 * @param {number} low
 * @param {number} high
 * @param {number} maxTicks
 */
function logTicks(low, high, maxTicks) {
  const ticks = [];
  for (let power = 10 ** Math.floor(Math.log10(low)); power <= high; power *= 10)
    ticks.push(...[1, 2, 5].map((n) => n * power).filter((n) => n >= low * (1 - 1e-9) && n <= high * (1 + 1e-9)));
  if (ticks.length < 2) return linearTicks(low, high, Math.min(maxTicks, 3)).filter((n) => n > 0);
  /** @param {number} n */
  const isPowerOfTen = (n) => Number.isInteger(Math.round(1e9 * Math.log10(n)) / 1e9);
  return ticks.length <= maxTicks ? ticks : ticks.filter(isPowerOfTen);
}

/**
 * @param {number} low
 * @param {number} high
 * @param {number} maxTicks
 */
function linearTicks(low, high, maxTicks) {
  const minStep = (high - low) / Math.max(1, maxTicks);
  const power = 10 ** Math.floor(Math.log10(minStep));
  const step = [1, 2, 5].map((n) => n * power).find((n) => n >= minStep * (1 - 1e-9)) ?? 10 * power;
  const ticks = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + 1e-9 * step; n += 1) ticks.push(n * step);
  return ticks;
}
