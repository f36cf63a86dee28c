import assert from "node:assert/strict";
import { test } from "node:test";
import { requestKey } from "../../../../src/regard/explorer/frontend/transport/request-key.js";
import { PYTHON } from "../example-session.js";

for (const { name, params, key } of PYTHON.keys.filter(({ name }) => name !== "experiment")) {
  test(`the key of ${name} is that of Python`, () => assert.equal(requestKey(name, params), key));
}

test("the order of parameters does not matter, the order of a list does", () => {
  assert.equal(requestKey("x", { b: 1, a: { d: 1, c: 2 } }), requestKey("x", { a: { c: 2, d: 1 }, b: 1 }));
  assert.notEqual(requestKey("x", { a: [1, 2] }), requestKey("x", { a: [2, 1] }));
});

test("missing parameters are left out", () => {
  assert.equal(requestKey("x", { a: null, b: undefined, progress_id: "p" }), "x{}");
});
