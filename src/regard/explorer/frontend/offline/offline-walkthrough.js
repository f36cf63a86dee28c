// Computes the walkthrough of attention on small matrices, for exported files, which have no Python.

import { evaluateNodes } from "./expr-interpreter.js";
import { normalizerStages } from "./stage-interpreter.js";

/**
 * @import { ExprNode, InputMatrices, Matrix, NormalizerSpec, OfflineEndpoint, StageDescription, StageValue } from "../lib/types.js"
 */

/**
 * The parameters of the endpoint `steps`.
 * @typedef {InputMatrices & {mask?: string, normalizer?: string, tokens?: string[] | null, dropout?: number,
 *           scale?: number | null, temperature?: number | null}} StepsParams
 */

/**
 * The response of steps; null for other endpoints, and for options that need Python.
 * @type {OfflineEndpoint}
 */
export async function offlineSteps(storedResponse, name, requestParams) {
  const params = /** @type {StepsParams} */ (requestParams);
  if (name !== "steps" || params.dropout) return null;
  const templates = await storedResponse("stage_templates", {});
  const { mask = "none", normalizer = "softmax", tokens = null } = params;
  const descriptions = templates?.values.stages[normalizer];
  if (!templates || !descriptions || (mask !== "none" && !templates.values.masks[mask])) return null;
  const { Q, K, ...numbers } = computeStages(
    params,
    templates.values.masks[mask],
    templates.values.normalizers[normalizer],
  );
  const overrides = stageOverrides(params, Q[0].length, templates.values.visibility_formulas[mask]);
  const stages = Object.entries(numbers.stages).map(([stage, values]) => ({
    name: stage,
    ...descriptions[stage],
    ...overrides[stage],
    values,
  }));
  /**
   * @param {Matrix} rows
   * @param {string} letter
   */
  const labels = (rows, letter) => rows.map((_, n) => tokens?.[n] ?? `${letter}${n}`);
  const formula = adjustFormula(templates.values.formulas[mask][normalizer], params);
  const axes = { query_labels: labels(Q, "q"), key_labels: labels(K, "k") };
  return { values: { formula, stages, ...axes }, arrays: {} };
}

/**
 * Descriptions and formulas of stages that depend on the options.
 * @param {StepsParams} params
 * @param {number} headDim
 * @param {string} visible
 * @returns {Record<string, StageDescription>}
 */
function stageOverrides({ scale = null, temperature }, headDim, visible) {
  const scaled =
    scale === null
      ? { formula: `s_ij = q_i · k_j / √${headDim}` }
      : { description: `times ${scale}`, formula: `s_ij = ${scale} s_ij` };
  const modifier = { formula: `s_ij = s / ${toPython(temperature ?? 1)}, where s is the previous score` };
  return { scaled, modifier, visible: { formula: visible } };
}

/**
 * The formula of the call with the scale and the temperature.
 * @param {string} formula
 * @param {StepsParams} params
 */
function adjustFormula(formula, { scale = null, temperature = null }) {
  const score = scale === null ? "q·k / √d" : `q·k · ${scale}`;
  const scaled = formula.replace("q·k / √d", score);
  if (temperature === null) return scaled;
  const hasModifier = scaled.includes(" with s = ");
  return hasModifier
    ? scaled.replace("(s", `(s / ${toPython(temperature)}`)
    : scaled.replace(score, `s / ${toPython(temperature)} with s = ${score}`);
}

/**
 * The temperature as in the formulas of Python, in which it is a float: 2.0.
 * @param {number} x
 */
function toPython(x) {
  return Number.isInteger(x) ? x.toFixed(1) : String(x);
}

/**
 * Q, K, and the values of every stage by name, in order; without a mask, `maskNodes` is undefined.
 * @param {StepsParams} params
 * @param {ExprNode[] | undefined} maskNodes
 * @param {NormalizerSpec} normalizer
 */
function computeStages({ temperature = null, scale = null, ...matrices }, maskNodes, normalizer) {
  const qkv = projectInputs(matrices);
  checkShapes(qkv);
  const { Q, K, V } = qkv;
  const headDim = Q[0].length;
  const products = Q.map((q) => K.map((k) => q.reduce((sum, x, n) => sum + x * k[n], 0)));
  let score = mapMatrix(products, (s) => (scale === null ? s / Math.sqrt(headDim) : s * scale));
  /** @type {Record<string, StageValue>} */
  const stages = { ...qkv, products, scaled: score };
  if (temperature !== null) {
    score = mapMatrix(score, (s) => s / temperature);
    stages.modifier = score;
  }
  /** @param {ExprNode[]} nodes */
  const evaluatePairs = (nodes) =>
    score.map((row, i) => row.map((s, j) => evaluateNodes(nodes, pairVariables(s, i, j, Q.length, K.length))));
  if (normalizer.modifier) {
    score = evaluatePairs(normalizer.modifier.nodes).map((row) => row.map(Number));
    stages[normalizer.modifier.name] = score;
  }
  if (maskNodes) {
    const visible = evaluatePairs(maskNodes);
    score = score.map((row, i) => row.map((s, j) => (visible[i][j] ? s : -Infinity)));
    Object.assign(stages, { visible, masked: score });
  }
  Object.assign(stages, normalizerStages(normalizer, score));
  stages.output = product(/** @type {Matrix} */ (stages.weights), V);
  return { Q, K, stages };
}

/**
 * The variables of an expression; `p` is the position of the query among the keys.
 * @param {number} s
 * @param {number} i
 * @param {number} j
 * @param {number} n_q
 * @param {number} n_k
 */
function pairVariables(s, i, j, n_q, n_k) {
  return { s, b: 0, h: 0, i, j, p: n_k - n_q + i, n_q, n_k };
}

/**
 * Q, K and V; with X and the projection matrices if they are given.
 * @param {InputMatrices} matrices
 * @returns {Record<"Q" | "K" | "V", Matrix> & Record<string, Matrix>}
 */
function projectInputs({ x, w_q, w_k, w_v, q, k, v }) {
  if (q && k && v) return { Q: q, K: k, V: v };
  if (!x || !w_q || !w_k || !w_v) throw new Error("Either q, k and v or x, w_q, w_k and w_v must be given.");
  for (const [name, w] of Object.entries({ w_q, w_k, w_v }))
    if (w.length !== x[0].length)
      throw new Error(`${name} must have as many rows as x has columns; got ${w.length} rows, ${x[0].length} columns.`);
  return { X: x, W_Q: w_q, W_K: w_k, W_V: w_v, Q: product(x, w_q), K: product(x, w_k), V: product(x, w_v) };
}

/** @param {Record<"Q" | "K" | "V", Matrix>} matrices */
function checkShapes({ Q, K, V }) {
  if (Q[0].length !== K[0].length)
    throw new Error(`q and k must have the same head dimension; got q=${Q[0].length}, k=${K[0].length}.`);
  if (K.length !== V.length) throw new Error(`k and v must have the same length; got k=${K.length}, v=${V.length}.`);
}

/**
 * @param {Matrix} a
 * @param {Matrix} b
 */
function product(a, b) {
  return a.map((row) => b[0].map((_, c) => row.reduce((sum, x, n) => sum + x * b[n][c], 0)));
}

/**
 * @param {Matrix} rows
 * @param {(x: number) => number} change
 */
function mapMatrix(rows, change) {
  return rows.map((row) => row.map(change));
}
