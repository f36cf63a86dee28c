// Computes the arithmetic of one weight from a head's vectors in an exported file.

/** @import { HeadVectorArrays, HeadVectors, OfflineEndpoint, PackedArray, Payload } from "../lib/types.js" */

/**
 * The normalized row of a query.
 * @typedef {{rowMax: number, exp: number[], expSum: number, weights: number[]}} SoftmaxRow
 */

/**
 * The response of cell_steps; null for other endpoints, and if the file does not contain the vectors.
 * @type {OfflineEndpoint}
 */
export async function offlineCell(storedResponse, name, params) {
  if (name !== "cell_steps") return null;
  const { session, layer, head, query, key } = /** @type {Record<string, number>} */ (params);
  const response = await storedResponse("head_vectors", { session, layer, head });
  if (!response?.values.is_supported) return null;
  return { values: { layer, head, query, key, ...cellSteps(response, query, key) }, arrays: {} };
}

/**
 * @param {Payload<HeadVectors, HeadVectorArrays>} vectors
 * @param {number} query
 * @param {number} key
 */
function cellSteps({ values, arrays }, query, key) {
  const { scale, normalizer, formula, modifier, mask, code, query_offset: offset } = values;
  const [q, k, v] = [vector(arrays.q, query), vector(arrays.k, key), vector(arrays.v, key)];
  const scores = scoresOf(arrays, scale, query);
  const products = q.map((x, n) => x * k[n]);
  const dot = sum(products);
  const row = softmax(scores);
  const score = scores[key];
  const isVisible = score !== -Infinity;
  const placeholders = { "{query}": query, "{key}": key, "{position}": offset + query };
  return {
    q,
    k,
    scale,
    score_kind: "dot",
    products,
    dot,
    scaled: dot * scale,
    modified_score: modifier && arrays.scores ? arrays.scores.data[query * arrays.k.shape[0] + key] : null,
    is_visible: isVisible,
    score: isVisible ? score : null,
    formula,
    modifier,
    mask,
    normalizer,
    ...weightSteps(row, scores, key),
    v,
    weighted_value: v.map((x) => row.weights[key] * x),
    output: outputOf(row.weights, arrays.v),
    code: Object.entries(placeholders).reduce((text, [name, value]) => text.replaceAll(name, String(value)), code),
  };
}

/**
 * The scores of a query, -Infinity for masked keys. Scores with a score modifier are in the file.
 * @param {HeadVectorArrays} arrays
 * @param {number} scale
 * @param {number} query
 */
function scoresOf({ q, k, visible, scores }, scale, query) {
  const queryVector = vector(q, query);
  return Array.from({ length: k.shape[0] }, (_, key) => {
    if (!visible.data[query * k.shape[0] + key]) return -Infinity;
    if (scores) return scores.data[query * k.shape[0] + key];
    return scale * sum(vector(k, key).map((x, n) => x * queryVector[n]));
  });
}

/**
 * @param {number[]} scores
 * @returns {SoftmaxRow}
 */
function softmax(scores) {
  const rowMax = Math.max(...scores);
  if (rowMax === -Infinity) return { rowMax, exp: scores, expSum: 0, weights: scores.map(() => 0) };
  const exp = scores.map((s) => Math.exp(s - rowMax));
  const expSum = sum(exp);
  return { rowMax, exp, expSum, weights: exp.map((e) => e / expSum) };
}

/**
 * The steps from the score to the weight; without them if every key is masked.
 * @param {SoftmaxRow} row
 * @param {number[]} scores
 * @param {number} key
 */
function weightSteps({ rowMax, exp, expSum, weights }, scores, key) {
  const values = { weight: weights[key], row_sum: sum(weights) };
  if (rowMax === -Infinity) return values;
  const lse = rowMax + Math.log(expSum);
  return {
    ...values,
    statistic: { name: "lse", value: lse },
    factor: 1,
    row_max: rowMax,
    exponent: scores[key] === -Infinity ? null : scores[key] - rowMax,
    exp: exp[key],
    exp_sum: expSum,
    lse,
    argmax_key: scores.indexOf(rowMax),
    num_visible_keys: scores.filter((s) => s > -Infinity).length,
  };
}

/**
 * The output of a query; values of keys without weight are skipped, since they may be NaN.
 * @param {number[]} weights
 * @param {PackedArray} values
 */
function outputOf(weights, { data, shape: [, width] }) {
  return Array.from({ length: width }, (_, n) =>
    weights.reduce((total, weight, key) => (weight > 0 ? total + weight * data[key * width + n] : total), 0),
  );
}

/**
 * @param {PackedArray} rows
 * @param {number} n
 */
function vector({ data, shape: [, width] }, n) {
  return Array.from(data.subarray(n * width, (n + 1) * width));
}

/** @param {number[]} numbers */
function sum(numbers) {
  return numbers.reduce((total, x) => total + x, 0);
}
