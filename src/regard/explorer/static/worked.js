// Attention on small matrices, worked through in the page itself: for a file, which has no Python to ask.

import { weighed } from "./weighed.js";

/** Whether the query at place p may look at the key at place j. */
const MASKS = {
  causal: (p, j) => j <= p,
  "window(2)": (p, j) => Math.abs(p - j) < 2,
  "causal & window(2)": (p, j) => j <= p && p - j < 2,
};

/** The answer to `steps`; null if it is another question, or one that needs Python. */
export async function fromForms(held, name, params) {
  if (name !== "steps" || params.dropout) return null;
  const forms = await held("forms", {});
  const { mask = "none", weigh = "softmax", tokens = null } = params;
  const words = forms?.values.stages[weigh];
  if (!words || (mask !== "none" && !MASKS[mask])) return null;
  const numbers = stagesOf({ ...params, mask, weigh });
  const own = filledIn(params, numbers.Q[0].length, forms.values.seen[mask]);
  const stages = Object.entries(numbers).map(([each, values]) => ({
    name: each,
    ...words[each],
    ...own[each],
    values,
  }));
  const names = (rows, letter) => rows.map((_, n) => tokens?.[n] ?? `${letter}${n}`);
  const formula = changed(forms.values.formulas[mask][weigh], params);
  return { values: { formula, stages, queries: names(numbers.Q, "q"), keys: names(numbers.K, "k") }, arrays: {} };
}

/** What is said of some stages depends on the numbers of a question. */
function filledIn({ scale = null, temperature }, width, seen) {
  const scaled =
    scale === null
      ? { formula: `s_ij = q_i · k_j / √${width}` }
      : { words: `times ${scale}`, formula: `s_ij = ${scale} s_ij` };
  return { scaled, rule: { formula: `s_ij = s / ${temperature}, s as before` }, seen: { formula: seen } };
}

function changed(formula, { scale = null, temperature = null }) {
  const score = scale === null ? "q·k / √d" : `q·k · ${scale}`;
  const scaled = formula.replace("q·k / √d", score);
  if (temperature === null) return scaled;
  const hasRule = scaled.includes(" with s = ");
  return hasRule
    ? scaled.replace("(s", `(s / ${temperature}`)
    : scaled.replace(score, `s / ${temperature} with s = ${score}`);
}

/** The numbers of every stage by its name, in order. */
function stagesOf({ mask, weigh, temperature = null, scale = null, ...given }) {
  const found = inputs(given);
  fits(found);
  const { Q, K, V } = found;
  const width = Q[0].length;
  found.products = Q.map((q) => K.map((k) => q.reduce((sum, x, n) => sum + x * k[n], 0)));
  found.scaled = every(found.products, (s) => (scale === null ? s / Math.sqrt(width) : s * scale));
  let score = found.scaled;
  if (temperature !== null) score = found.rule = every(score, (s) => s / temperature);
  if (weigh === "entmax(1.5)") score = found.multiplied = every(score, (s) => s * 0.5);
  if (mask !== "none") {
    found.seen = score.map((row, i) => row.map((_, j) => MASKS[mask](K.length - Q.length + i, j)));
    score = found.masked = score.map((row, i) => row.map((s, j) => (found.seen[i][j] ? s : -Infinity)));
  }
  Object.assign(found, weighed(weigh, score));
  found.output = product(found.weights, V);
  return found;
}

/** Q, K and V, and what they are made of. */
function inputs({ x, w_q, w_k, w_v, q, k, v }) {
  if (!x) return { Q: q, K: k, V: v };
  for (const [name, w] of Object.entries({ w_q, w_k, w_v }))
    if (w.length !== x[0].length)
      throw new Error(`${name} must have as many rows as x has columns; got ${w.length} rows, ${x[0].length} columns.`);
  return { X: x, W_Q: w_q, W_K: w_k, W_V: w_v, Q: product(x, w_q), K: product(x, w_k), V: product(x, w_v) };
}

function fits({ Q, K, V }) {
  if (Q[0].length !== K[0].length)
    throw new Error(`q and k must have the same width; got q=${Q[0].length}, k=${K[0].length}.`);
  if (K.length !== V.length) throw new Error(`k and v must have the same length; got k=${K.length}, v=${V.length}.`);
}

function product(a, b) {
  return a.map((row) => b[0].map((_, c) => row.reduce((sum, x, n) => sum + x * b[n][c], 0)));
}

function every(rows, change) {
  return rows.map((row) => row.map(change));
}
