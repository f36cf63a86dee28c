// Evaluates the expressions of masks and score modifiers, which the server sends as lists of nodes.

/** @import { ExprNode } from "../lib/types.js" */

/** @typedef {(...values: any[]) => number | boolean} Operation any: numbers or booleans, as the operation requires */

/**
 * The operations on numbers and booleans; the server sends no other ones.
 * @type {Record<string, Operation>}
 */
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
  abs: Math.abs,
  sign: Math.sign,
  floor: Math.floor,
  ceil: Math.ceil,
  trunc: Math.trunc,
  exp: Math.exp,
  expm1: Math.expm1,
  log: Math.log,
  log1p: Math.log1p,
  log2: Math.log2,
  sqrt: Math.sqrt,
  tanh: Math.tanh,
  sin: Math.sin,
  cos: Math.cos,
};

/**
 * The value of an expression for the values of its variables.
 * @param {ExprNode[]} nodes
 * @param {Record<string, number | boolean>} variables
 */
export function evaluateNodes(nodes, variables) {
  /** @type {Array<number | boolean>} */
  const values = [];
  for (const [operation, content] of nodes) {
    if (Array.isArray(content)) values.push(OPERATIONS[operation](...content.map((n) => values[n])));
    else values.push(typeof content === "string" ? variables[content] : content);
  }
  return values[values.length - 1];
}
