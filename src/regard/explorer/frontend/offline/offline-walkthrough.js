// Computes the walkthrough of attention on small matrices, for exported files, which have no Python.

import { evaluateNodes } from "./expr-interpreter.js";
import { normalizerStages } from "./stage-interpreter.js";

/** The response of steps; null for other endpoints, and for options that need Python. */
export async function offlineSteps(storedResponse, name, params) {
  if (name !== "steps" || params.dropout) return null;
  const templates = await storedResponse("stage_templates", {});
  const { mask = "none", normalizer = "softmax", tokens = null } = params;
  const descriptions = templates?.values.stages[normalizer];
  if (!descriptions || (mask !== "none" && !templates.values.masks[mask])) return null;
  const numbers = computeStages(params, templates.values.masks[mask], templates.values.normalizers[normalizer]);
  const overrides = stageOverrides(params, numbers.Q[0].length, templates.values.visibility_formulas[mask]);
  const stages = Object.entries(numbers).map(([stage, values]) => ({
    name: stage,
    ...descriptions[stage],
    ...overrides[stage],
    values,
  }));
  const labels = (rows, letter) => rows.map((_, n) => tokens?.[n] ?? `${letter}${n}`);
  const formula = adjustFormula(templates.values.formulas[mask][normalizer], params);
  const axes = { query_labels: labels(numbers.Q, "q"), key_labels: labels(numbers.K, "k") };
  return { values: { formula, stages, ...axes }, arrays: {} };
}

/** Descriptions and formulas of stages that depend on the options. */
function stageOverrides({ scale = null, temperature }, headDim, visible) {
  const scaled =
    scale === null
      ? { formula: `s_ij = q_i · k_j / √${headDim}` }
      : { description: `times ${scale}`, formula: `s_ij = ${scale} s_ij` };
  const modifier = { formula: `s_ij = s / ${temperature}, where s is the previous score` };
  return { scaled, modifier, visible: { formula: visible } };
}

function adjustFormula(formula, { scale = null, temperature = null }) {
  const score = scale === null ? "q·k / √d" : `q·k · ${scale}`;
  const scaled = formula.replace("q·k / √d", score);
  if (temperature === null) return scaled;
  const hasModifier = scaled.includes(" with s = ");
  return hasModifier
    ? scaled.replace("(s", `(s / ${temperature}`)
    : scaled.replace(score, `s / ${temperature} with s = ${score}`);
}

/** The values of every stage by name, in order; without a mask, `maskNodes` is undefined. */
function computeStages({ temperature = null, scale = null, ...matrices }, maskNodes, normalizer) {
  const stages = projectInputs(matrices);
  checkShapes(stages);
  const { Q, K, V } = stages;
  const headDim = Q[0].length;
  stages.products = Q.map((q) => K.map((k) => q.reduce((sum, x, n) => sum + x * k[n], 0)));
  stages.scaled = mapMatrix(stages.products, (s) => (scale === null ? s / Math.sqrt(headDim) : s * scale));
  let score = stages.scaled;
  if (temperature !== null) score = stages.modifier = mapMatrix(score, (s) => s / temperature);
  const evaluatePairs = (nodes) =>
    score.map((row, i) => row.map((s, j) => evaluateNodes(nodes, pairVariables(s, i, j, Q.length, K.length))));
  if (normalizer.modifier) score = stages[normalizer.modifier.name] = evaluatePairs(normalizer.modifier.nodes);
  if (maskNodes) {
    stages.visible = evaluatePairs(maskNodes);
    score = stages.masked = score.map((row, i) => row.map((s, j) => (stages.visible[i][j] ? s : -Infinity)));
  }
  Object.assign(stages, normalizerStages(normalizer, score));
  stages.output = product(stages.weights, V);
  return stages;
}

/** The variables of an expression; `p` is the position of the query among the keys. */
function pairVariables(s, i, j, n_q, n_k) {
  return { s, b: 0, h: 0, i, j, p: n_k - n_q + i, n_q, n_k };
}

/** Q, K and V; with X and the projection matrices if they are given. */
function projectInputs({ x, w_q, w_k, w_v, q, k, v }) {
  if (!x) return { Q: q, K: k, V: v };
  for (const [name, w] of Object.entries({ w_q, w_k, w_v }))
    if (w.length !== x[0].length)
      throw new Error(`${name} must have as many rows as x has columns; got ${w.length} rows, ${x[0].length} columns.`);
  return { X: x, W_Q: w_q, W_K: w_k, W_V: w_v, Q: product(x, w_q), K: product(x, w_k), V: product(x, w_v) };
}

function checkShapes({ Q, K, V }) {
  if (Q[0].length !== K[0].length)
    throw new Error(`q and k must have the same head dimension; got q=${Q[0].length}, k=${K[0].length}.`);
  if (K.length !== V.length) throw new Error(`k and v must have the same length; got k=${K.length}, v=${V.length}.`);
}

function product(a, b) {
  return a.map((row) => b[0].map((_, c) => row.reduce((sum, x, n) => sum + x * b[n][c], 0)));
}

function mapMatrix(rows, change) {
  return rows.map((row) => row.map(change));
}
