// Measures of how concentrated the weights of a query are.

/**
 * The entropy of weights that sum to 1, in nats: 0 if one weight is 1, log(n) if all n weights are equal.
 * @param {number[]} weights
 */
export function entropy(weights) {
  return weights.reduce((sum, a) => sum - (a > 0 ? a * Math.log(a) : 0), 0);
}

/**
 * The Frobenius norm of the derivatives of softmax weights with respect to the scores, diag(a) - a aᵀ.
 * @param {number[]} weights
 */
export function derivativeNorm(weights) {
  const squares = weights.flatMap((a, i) => weights.map((b, j) => ((i === j ? a : 0) - a * b) ** 2));
  return Math.sqrt(squares.reduce((sum, x) => sum + x, 0));
}
