// Evaluates the stages of a normalizer, which the server sends as trees: numbers, names, and [operation, ...arguments].
// A value is a number, a list with one number per query, or a matrix.

import { OPERATIONS } from "./expr-interpreter.js";

/** @import { Matrix, NormalizerSpec, StageTree } from "../lib/types.js" */

/**
 * A number, a list with one number per query, or a matrix; booleans are the results of comparisons.
 * @typedef {number | boolean | Value[]} Value
 * @typedef {Record<string, Value>} Variables
 * @typedef {{scores: Matrix, parameter: number, k?: number}} FunctionVariables
 * @typedef {import("./expr-interpreter.js").Operation} Operation
 */

const BISECTION_STEPS = 80; // enough for full double precision
const SMALLEST_FLOAT32 = -3.4028234663852886e38; // the threshold of rows without a smaller score, as in Python

/** @type {Record<string, Operation>} */
const ELEMENTWISE = {
  ...OPERATIONS,
  relu: (x) => Math.max(x, 0),
  square: (x) => x * x,
  isnan: Number.isNaN,
  clamp: (x, low, high) => Math.min(Math.max(x, low ?? -Infinity), high ?? Infinity),
  double: Number,
};

/** @type {Record<string, (row: number[]) => number>} */
const REDUCTIONS = {
  sum: total,
  mean: (row) => total(row) / row.length,
  amax: (row) => Math.max(...row),
  amin: (row) => Math.min(...row),
};

/**
 * Stages that are not one expression: functions of the variables.
 * @type {Record<string, (variables: FunctionVariables) => Value>}
 */
const FUNCTIONS = {
  entmax_threshold: ({ scores, parameter }) => scores.map((row) => entmaxThreshold(row, parameter)),
  topk_threshold: ({ scores, k = 1 }) => scores.map((row) => topkThreshold(row, k)),
};

/** The names of all operations; the server sends no other ones. */
export const STAGE_OPERATIONS = [
  "column",
  ...[ELEMENTWISE, REDUCTIONS, FUNCTIONS].flatMap((table) => Object.keys(table)),
];

/**
 * The stages of a normalizer by name; the last one is `weights`. Scores of masked pairs are -Infinity.
 * @param {NormalizerSpec} normalizer
 * @param {Matrix} scores
 */
export function normalizerStages({ constants, stage_specs: stageSpecs }, scores) {
  /** @type {Variables} */
  const variables = { inf: Infinity, nan: NaN, n_k: scores[0].length, ...constants, scores };
  /** @type {Record<string, Value>} */
  const stages = {};
  for (const { name, variable, tree } of stageSpecs) {
    stages[name] = evaluateTree(tree, variables);
    variables[variable] = stages[name];
  }
  return stages;
}

/**
 * @param {StageTree} tree
 * @param {Variables} variables
 * @returns {Value}
 */
function evaluateTree(tree, variables) {
  if (typeof tree === "string") return variables[tree];
  if (!Array.isArray(tree)) return /** @type {number} */ (tree); // null, an argument that is left out, stays null
  const [operation, ...args] = tree;
  if (operation in FUNCTIONS) return FUNCTIONS[operation](/** @type {FunctionVariables} */ (variables));
  const values = args.map((arg) => evaluateTree(arg, variables));
  if (operation === "column") return toList(values[0]).map((x) => [x]);
  if (operation in REDUCTIONS) return reduceRows(REDUCTIONS[operation], toList(values[0]));
  return broadcast(ELEMENTWISE[operation], values);
}

/**
 * @param {(row: number[]) => number} reduce
 * @param {Value[]} values a row, or rows of any number of axes
 * @returns {Value}
 */
function reduceRows(reduce, values) {
  if (values.every(Array.isArray)) return values.map((row) => reduceRows(reduce, row));
  return reduce(/** @type {number[]} */ (values));
}

/**
 * A value with one axis more, unless it has an axis.
 * @param {Value} value
 */
function toList(value) {
  return Array.isArray(value) ? value : [value];
}

/**
 * Applies a function of numbers to each element, with the shapes aligned at the last axis, as in torch.
 * @param {Operation} apply
 * @param {Value[]} values
 * @returns {Value}
 */
function broadcast(apply, values) {
  const depth = Math.max(...values.map(numAxes));
  if (depth === 0) return apply(...values);
  const aligned = values.map((value) => (numAxes(value) === depth ? toList(value) : [value]));
  if (aligned.some((value) => numAxes(value) < depth)) return broadcast(apply, aligned);
  const length = Math.max(...aligned.map((value) => value.length));
  return Array.from({ length }, (_, n) =>
    broadcast(
      apply,
      aligned.map((value) => value[value.length === 1 ? 0 : n]),
    ),
  );
}

/**
 * @param {Value} value
 * @returns {number}
 */
function numAxes(value) {
  return Array.isArray(value) ? 1 + numAxes(value[0]) : 0;
}

/**
 * The threshold tau of a row for which max(s - tau, 0) ** exponent sums to 1.
 * @param {number[]} row
 * @param {number} exponent
 */
function entmaxThreshold(row, exponent) {
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

/**
 * A number between the k largest scores of a row and the others; ties stay above it.
 * @param {number[]} row
 * @param {number} k
 */
function topkThreshold(row, k) {
  const kth = [...row].sort((a, b) => b - a)[k - 1];
  const next = Math.max(...row.filter((s) => s < kth));
  if (row.length <= k || next === -Infinity) return SMALLEST_FLOAT32;
  const middle = next + (kth - next) / 2;
  return middle > next ? middle : kth;
}

/** @param {number[]} row */
function total(row) {
  return row.reduce((sum, x) => sum + x, 0);
}
