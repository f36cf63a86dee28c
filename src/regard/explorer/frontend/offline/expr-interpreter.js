// Evaluates the expressions of masks and score modifiers, which the server sends as lists of nodes.

/** The operations on numbers; the server sends no other ones. */
export const OPERATIONS = {
  add: (a, b) => a + b,
  sub: (a, b) => a - b,
  mul: (a, b) => a * b,
  div: (a, b) => a / b,
  floordiv: (a, b) => Math.floor(a / b),
  mod: (a, b) => a - b * Math.floor(a / b),
  pow: (a, b) => a ** b,
  minimum: Math.min,
  maximum: Math.max,
  eq: (a, b) => a === b,
  ne: (a, b) => a !== b,
  lt: (a, b) => a < b,
  le: (a, b) => a <= b,
  gt: (a, b) => a > b,
  ge: (a, b) => a >= b,
  and: (a, b) => a && b,
  or: (a, b) => a || b,
  xor: (a, b) => a !== b,
  not: (a) => !a,
  where: (condition, a, b) => (condition ? a : b),
  neg: (a) => -a,
  sigmoid: (a) => 1 / (1 + Math.exp(-a)),
  exp2: (a) => 2 ** a,
  ...Object.fromEntries(
    ["abs", "sign", "floor", "ceil", "trunc", "exp", "expm1", "log", "log1p", "log2", "sqrt", "tanh", "sin", "cos"].map(
      (name) => [name, Math[name]],
    ),
  ),
};

/** The value of an expression for the values of its variables. */
export function evaluateNodes(nodes, variables) {
  const values = [];
  for (const [operation, content] of nodes) {
    if (operation === "constant") values.push(content);
    else if (operation === "variable") values.push(variables[content]);
    else values.push(OPERATIONS[operation](...content.map((n) => values[n])));
  }
  return values.at(-1);
}
