// An axis of a chart: where a number lies on it, in proportion or by its logarithm, and which numbers are written.

/**
 * @param {number[]} values all that must find a place
 * @param {boolean} isLog
 * @param {number} from where the axis begins, in pixels
 * @param {number} to and ends
 */
export function axisOf(values, isLog, from, to) {
  const good = values.filter((v) => Number.isFinite(v) && (!isLog || v > 0));
  const [low, high] = isLog ? logEnds(good) : linearEnds(good);
  const place = isLog ? Math.log : (v) => v;
  const at = (v) => from + ((place(v) - place(low)) / (place(high) - place(low))) * (to - from);
  const has = (v) => Number.isFinite(v) && (!isLog || v > 0);
  return { low, high, at, has, isLog };
}

function logEnds(values) {
  if (!values.length) return [1, 10];
  const [low, high] = [Math.min(...values), Math.max(...values)];
  return low === high ? [low / 2, low * 2] : [low, high];
}

/** A little more than the values, so that no point lies on the frame. */
function linearEnds(values) {
  if (!values.length) return [0, 1];
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const room = high > low ? 0.04 * (high - low) : 0.1 * Math.abs(high) || 1;
  return [low >= 0 && low - room < 0 ? Math.min(low, 0) : low - room, high + room];
}

/** The numbers that are written at an axis: round ones, so many at most. @param {number} base of a logarithmic axis */
export function ticksOf({ low, high, isLog }, most, base = 10) {
  if (!isLog) return roundOnes(low, high, most);
  const first = Math.ceil(Math.log(low) / Math.log(base) - 1e-9);
  const last = Math.floor(Math.log(high) / Math.log(base) + 1e-9);
  if (last - first < 2 && base === 10) return between(low, high, most);
  const step = Math.max(1, Math.ceil((last - first + 1) / most));
  const found = [];
  for (let n = first; n <= last; n += step) found.push(base ** n);
  return found;
}

/** Of less than two powers of ten: 1, 2 and 5 of each as well, or round ones of a very short axis. */
function between(low, high, most) {
  const found = [];
  for (let power = 10 ** Math.floor(Math.log10(low)); power <= high; power *= 10)
    found.push(...[1, 2, 5].map((n) => n * power).filter((n) => n >= low * (1 - 1e-9) && n <= high * (1 + 1e-9)));
  if (found.length < 2) return roundOnes(low, high, Math.min(most, 3)).filter((n) => n > 0);
  return found.length <= most ? found : found.filter((n) => Number.isInteger(Math.round(1e9 * Math.log10(n)) / 1e9));
}

function roundOnes(low, high, most) {
  const rough = (high - low) / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough * (1 - 1e-9));
  const found = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + 1e-9 * step; n += 1) found.push(n * step);
  return found;
}
