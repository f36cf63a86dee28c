// How scores become weights, stage by stage, on small matrices. A row that sees nothing weighs nothing.

const HALVINGS = 80; // of the interval that a threshold lies in: as exact as numbers are

/** The stages of a weighing by name, the last of them `weights`; scores are -Infinity where hidden. */
export function weighed(name, scores) {
  return STAGES[name](scores);
}

const STAGES = {
  softmax: (scores) => shares(scores, largest(scores)),
  sink: (scores) => ({
    sink: 0,
    ...shares(
      scores,
      largest(scores).map((top) => Math.max(top, 0)),
      0,
    ),
  }),
  sparsemax: (scores) => aboveLevels(scores, 1),
  "entmax(1.5)": (scores) => {
    const { weights, ...stages } = aboveLevels(scores, 2);
    return { ...stages, power: 2, weights };
  },
  sigmoid: (scores) => ({ weights: every(scores, (s) => 1 / (1 + Math.exp(-s))) }),
  relu: (scores) => {
    const positive = every(scores, (s) => Math.max(s, 0));
    const factor = 1 / scores[0].length;
    return { positive, factor, weights: every(positive, (s) => s * factor) };
  },
};

/** Powers of e over their sums; a sink adds its own to each sum. */
function shares(scores, tops, sink = null) {
  const below = scores.map((row, i) => row.map((s) => s - (tops[i] === -Infinity ? 0 : tops[i])));
  const powers = every(below, Math.exp);
  const sums = powers.map((row, i) => total(row) + (sink === null ? 0 : Math.exp(sink - tops[i])));
  const weights = powers.map((row, i) => row.map((e) => (sums[i] ? e / sums[i] : 0)));
  return { "row maximum": tops, "below maximum": below, exp: powers, "row sum": sums, weights };
}

/** What lies above a threshold, to a power, such that each row sums to 1. */
function aboveLevels(scores, power) {
  const tau = scores.map((row) => threshold(row, power));
  const support = scores.map((row, i) => row.map((s) => s > tau[i]));
  const above = scores.map((row, i) => row.map((s, j) => (support[i][j] ? s - tau[i] : 0)));
  return { tau, support, "above tau": above, weights: every(above, (gap) => gap ** power) };
}

function threshold(row, power) {
  const top = Math.max(...row);
  if (top === -Infinity) return Infinity;
  let [low, high] = [top - 1, top];
  for (let n = 0; n < HALVINGS; n += 1) {
    const middle = (low + high) / 2;
    if (total(row.map((s) => Math.max(s - middle, 0) ** power)) > 1) low = middle;
    else high = middle;
  }
  return low;
}

function largest(rows) {
  return rows.map((row) => Math.max(...row));
}

function total(row) {
  return row.reduce((sum, x) => sum + x, 0);
}

function every(rows, change) {
  return rows.map((row) => row.map((x) => change(x)));
}
