// The states of tokens at a step of the generation.

/**
 * The state of a token at a step: generated now, the query that predicts it, later, generated before, or input.
 * @param {number} token
 * @param {number} step
 * @param {number} first the first generated token
 */
export function tokenStateAtStep(token, step, first) {
  if (token === step) return "key";
  if (token === step - 1) return "query";
  if (token > step) return "future";
  return token >= first ? "generated" : "";
}
