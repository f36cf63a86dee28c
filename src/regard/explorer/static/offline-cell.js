// The arithmetic of one weight computed from a head's vectors, where no server can be asked for it.

/** The answer to the question "cell"; null for other questions, and where the file does not have the vectors. */
export async function fromVectors(held, name, params) {
  if (name !== "cell") return null;
  const { shown, layer, head, query, key } = params;
  const answer = await held("head_vectors", { shown, layer, head });
  if (!answer?.values.supported) return null;
  return { values: { layer, head, query, key, ...cellOf(answer, query, key) }, arrays: {} };
}

function cellOf({ values, arrays }, query, key) {
  const { scale, weighing, formula, rule, mask, code, start } = values;
  const [q, k, v] = [vector(arrays.q, query), vector(arrays.k, key), vector(arrays.v, key)];
  const scores = scoresOf(arrays, scale, query);
  const products = q.map((x, n) => x * k[n]);
  const dot = sum(products);
  const row = softmax(scores);
  const score = scores[key];
  const isSeen = score !== -Infinity;
  const numbers = [query, key, start + query];
  return {
    q,
    k,
    scale,
    kind: "dot",
    products,
    dot,
    scaled: dot * scale,
    after_rule: rule ? arrays.scores.data[query * arrays.k.shape[0] + key] : null,
    seen: isSeen,
    score: isSeen ? score : null,
    formula,
    rule,
    mask,
    weighing,
    ...weightOf(row, scores, key),
    v,
    taken: v.map((x) => row.weights[key] * x),
    output: outputOf(row.weights, arrays.v),
    code: ["{query}", "{key}", "{position}"].reduce((text, mark, n) => text.replaceAll(mark, numbers[n]), code),
  };
}

/** The scores of a query: -Infinity where hidden; where a rule changed them, those in the file. */
function scoresOf({ q, k, visible, scores }, scale, query) {
  const mine = vector(q, query);
  return Array.from({ length: k.shape[0] }, (_, key) => {
    if (!visible.data[query * k.shape[0] + key]) return -Infinity;
    if (scores) return scores.data[query * k.shape[0] + key];
    return scale * sum(vector(k, key).map((x, n) => x * mine[n]));
  });
}

function softmax(scores) {
  const maximum = Math.max(...scores);
  if (maximum === -Infinity) return { maximum, powers: scores, total: 0, weights: scores.map(() => 0) };
  const powers = scores.map((s) => Math.exp(s - maximum));
  const total = sum(powers);
  return { maximum, powers, total, weights: powers.map((power) => power / total) };
}

function weightOf({ maximum, powers, total, weights }, scores, key) {
  const values = { weight: weights[key], row_sum: sum(weights) };
  if (maximum === -Infinity) return values;
  const lse = maximum + Math.log(total);
  return {
    ...values,
    statistic: { name: "lse", value: lse },
    factor: 1,
    maximum,
    exponent: scores[key] === -Infinity ? null : scores[key] - maximum,
    power: powers[key],
    total,
    lse,
    maximum_at: scores.indexOf(maximum),
    keys_seen: scores.filter((s) => s > -Infinity).length,
  };
}

function outputOf(weights, { data, shape: [, width] }) {
  return Array.from({ length: width }, (_, n) =>
    weights.reduce((all, weight, key) => (weight > 0 ? all + weight * data[key * width + n] : all), 0),
  );
}

function vector({ data, shape: [, width] }, n) {
  return Array.from(data.subarray(n * width, (n + 1) * width));
}

function sum(numbers) {
  return numbers.reduce((all, x) => all + x, 0);
}
