// Computes the walkthrough of attention on small matrices, for exported files, which have no Python.

import { normalizerStages } from "./offline-normalizers.js";

/** Whether the query at position p may attend to the key at position j. */
const MASKS = {
  causal: (p, j) => j <= p,
  "sliding_window(2)": (p, j) => Math.abs(p - j) < 2,
  "causal & sliding_window(2)": (p, j) => j <= p && p - j < 2,
};

/** The response of steps; null for other endpoints, and for options that need Python. */
export async function offlineSteps(storedResponse, name, params) {
  if (name !== "steps" || params.dropout) return null;
  const templates = await storedResponse("stage_templates", {});
  const { mask = "none", normalizer = "softmax", tokens = null } = params;
  const descriptions = templates?.values.stages[normalizer];
  if (!descriptions || (mask !== "none" && !MASKS[mask])) return null;
  const numbers = computeStages({ ...params, mask, normalizer });
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
  const modifier = { formula: `s_ij = s / ${temperature}, s as before` };
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

/** The values of every stage by name, in order. */
function computeStages({ mask, normalizer, temperature = null, scale = null, ...matrices }) {
  const stages = projectInputs(matrices);
  checkShapes(stages);
  const { Q, K, V } = stages;
  const headDim = Q[0].length;
  stages.products = Q.map((q) => K.map((k) => q.reduce((sum, x, n) => sum + x * k[n], 0)));
  stages.scaled = mapMatrix(stages.products, (s) => (scale === null ? s / Math.sqrt(headDim) : s * scale));
  let score = stages.scaled;
  if (temperature !== null) score = stages.modifier = mapMatrix(score, (s) => s / temperature);
  if (normalizer === "entmax(1.5)") score = stages["times alpha minus 1"] = mapMatrix(score, (s) => s * 0.5);
  if (mask !== "none") {
    stages.visible = score.map((row, i) => row.map((_, j) => MASKS[mask](K.length - Q.length + i, j)));
    score = stages.masked = score.map((row, i) => row.map((s, j) => (stages.visible[i][j] ? s : -Infinity)));
  }
  Object.assign(stages, normalizerStages(normalizer, score));
  stages.output = product(stages.weights, V);
  return stages;
}

/** Q, K and V; with X and the projection matrices if they are given. */
function projectInputs({ x, w_q, w_k, w_v, q, k, v }) {
  if (!x) return { Q: q, K: k, V: v };
  for (const [name, w] of Object.entries({ w_q, w_k, w_v }))
    if (w.length !== x[0].length)
      throw new Error(`${name} must have as many rows as x has columns, got ${w.length} rows, ${x[0].length} columns.`);
  return { X: x, W_Q: w_q, W_K: w_k, W_V: w_v, Q: product(x, w_q), K: product(x, w_k), V: product(x, w_v) };
}

function checkShapes({ Q, K, V }) {
  if (Q[0].length !== K[0].length)
    throw new Error(`q and k must have the same head dimension, got q=${Q[0].length}, k=${K[0].length}.`);
  if (K.length !== V.length) throw new Error(`k and v must have the same length, got k=${K.length}, v=${V.length}.`);
}

function product(a, b) {
  return a.map((row) => b[0].map((_, c) => row.reduce((sum, x, n) => sum + x * b[n][c], 0)));
}

function mapMatrix(rows, change) {
  return rows.map((row) => row.map(change));
}
