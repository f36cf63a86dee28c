// The stages of normalizers on small matrices. The weights of a fully masked row are 0.

const BISECTION_STEPS = 80; // enough for full double precision

/** The stages of a normalizer by name; the last one is `weights`. Scores of masked pairs are -Infinity. */
export function normalizerStages(name, scores) {
  return STAGES[name](scores);
}

const STAGES = {
  softmax: (scores) => softmaxStages(scores, rowMaxima(scores)),
  sink: (scores) => ({
    sink: 0,
    ...softmaxStages(
      scores,
      rowMaxima(scores).map((maximum) => Math.max(maximum, 0)),
      0,
    ),
  }),
  sparsemax: (scores) => thresholdedStages(scores, 1),
  "entmax(1.5)": (scores) => {
    const { weights, ...stages } = thresholdedStages(scores, 2);
    return { ...stages, exponent: 2, weights };
  },
  sigmoid: (scores) => ({ weights: mapCells(scores, (s) => 1 / (1 + Math.exp(-s))) }),
  relu: (scores) => {
    const positive = mapCells(scores, (s) => Math.max(s, 0));
    const factor = 1 / scores[0].length;
    return { positive, factor, weights: mapCells(positive, (s) => s * factor) };
  },
};

/** The stages of softmax; a sink adds its exponential to each row sum. */
function softmaxStages(scores, maxima, sink = null) {
  const shifted = scores.map((row, i) => row.map((s) => s - (maxima[i] === -Infinity ? 0 : maxima[i])));
  const exp = mapCells(shifted, Math.exp);
  const sums = exp.map((row, i) => total(row) + (sink === null ? 0 : Math.exp(sink - maxima[i])));
  const weights = exp.map((row, i) => row.map((e) => (sums[i] ? e / sums[i] : 0)));
  return { "row maximum": maxima, "minus maximum": shifted, exp, "row sum": sums, weights };
}

/** The stages of max(s - tau, 0) ** exponent, with the threshold tau for which each row sums to 1. */
function thresholdedStages(scores, exponent) {
  const tau = scores.map((row) => threshold(row, exponent));
  const support = scores.map((row, i) => row.map((s) => s > tau[i]));
  const above = scores.map((row, i) => row.map((s, j) => (support[i][j] ? s - tau[i] : 0)));
  return { tau, support, "above tau": above, weights: mapCells(above, (gap) => gap ** exponent) };
}

function threshold(row, exponent) {
  const maximum = Math.max(...row);
  if (maximum === -Infinity) return Infinity;
  let [low, high] = [maximum - 1, maximum];
  for (let n = 0; n < BISECTION_STEPS; n += 1) {
    const middle = (low + high) / 2;
    if (total(row.map((s) => Math.max(s - middle, 0) ** exponent)) > 1) low = middle;
    else high = middle;
  }
  return low;
}

function rowMaxima(rows) {
  return rows.map((row) => Math.max(...row));
}

function total(row) {
  return row.reduce((sum, x) => sum + x, 0);
}

function mapCells(rows, change) {
  return rows.map((row) => row.map((x) => change(x)));
}
