import assert from "node:assert/strict";
import { test } from "node:test";
import { fileSource } from "../../../../src/regard/explorer/frontend/transport/file-source.js";
import { PYTHON } from "../example-session.js";

const source = fileSource(PYTHON.responses);
const KEY = Object.keys(PYTHON.responses).find((key) => key.startsWith("cost{"));
const PARAMS = JSON.parse(KEY.slice("cost".length));

test("the curves of the selected mechanisms are in the file, with the rest of the model", async () => {
  const { values } = await source.request("cost", { ...PARAMS, mechanisms: ["softmax", "linear"] });
  assert.deepEqual(new Set(values.curves.map(({ name }) => name)), new Set(["softmax", "linear"]));
  assert.ok(values.non_attention.flops.every((x) => x > 0));
  const names = ["softmax", "linear", values.non_attention.name];
  assert.ok(values.crossovers.length > 0);
  assert.ok(values.crossovers.every(({ first, second }) => names.includes(first) && names.includes(second)));
});

test("another model size is not in the file", async () => {
  await assert.rejects(source.request("cost", { ...PARAMS, embed_dim: 100 }), { name: "NotInFile" });
});
