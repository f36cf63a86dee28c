import assert from "node:assert/strict";
import { test } from "node:test";
import { evaluateNodes, OPERATIONS } from "../../../../src/regard/explorer/frontend/offline/expr-interpreter.js";

const CASES = [
  ["floordiv", [-7, 2], -4],
  ["mod", [-7, 3], 2],
  ["mod", [7, -3], -2],
  ["pow", [2, 10], 1024],
  ["minimum", [3, -1], -1],
  ["maximum", [3, -1], 3],
  ["le", [2, 2], true],
  ["lt", [2, 2], false],
  ["xor", [true, true], false],
  ["not", [false], true],
  ["where", [false, 1, 2], 2],
  ["sigmoid", [0], 0.5],
  ["exp2", [3], 8],
  ["sign", [-4], -1],
  ["trunc", [-1.5], -1],
];
for (const [name, args, expected] of CASES) {
  test(`${name}(${args}) is ${expected}`, () => assert.equal(OPERATIONS[name](...args), expected));
}

test("a node refers to earlier nodes", () => {
  const nodes = [
    ["variable", "i"],
    ["variable", "j"],
    ["sub", [0, 1]],
    ["constant", 2],
    ["lt", [2, 3]],
  ];
  assert.equal(evaluateNodes(nodes, { i: 5, j: 4 }), true);
  assert.equal(evaluateNodes(nodes, { i: 5, j: 3 }), false);
});

test("a constant may be a boolean", () => {
  assert.equal(
    evaluateNodes(
      [
        ["constant", true],
        ["not", [0]],
      ],
      {},
    ),
    false,
  );
});
