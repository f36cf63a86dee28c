import assert from "node:assert/strict";
import { test } from "node:test";
import { offlineSteps } from "../../../../src/regard/explorer/frontend/offline/offline-walkthrough.js";
import { fileSource } from "../../../../src/regard/explorer/frontend/transport/file-source.js";
import { PYTHON } from "../example-session.js";

const source = fileSource(PYTHON.responses);
const TOLERANCE = 1e-12;

function assertClose(actual, expected, name) {
  if (Array.isArray(expected)) {
    assert.equal(actual.length, expected.length, name);
    for (const [n, value] of expected.entries()) assertClose(actual[n], value, name);
  } else if (typeof expected === "number")
    assert.ok(Math.abs(actual - expected) <= TOLERANCE, `${name}: ${actual}, ${expected}`);
  else assert.equal(typeof actual === "number" ? String(actual).replace("Infinity", "inf") : actual, expected, name);
}

for (const { params, expected } of PYTHON.steps) {
  const { mask, normalizer, scale = "default", temperature = 1 } = params;
  test(`stages of ${normalizer}, mask ${mask}, scale ${scale}, temperature ${temperature} are those of Python`, async () => {
    const { values } = await source.request("steps", params);
    assert.equal(values.formula, expected.formula);
    assert.deepEqual(
      values.stages.map(({ name }) => name),
      Object.keys(expected.stages),
    );
    for (const stage of values.stages) assertClose(stage.values, expected.stages[stage.name], stage.name);
    for (const [name, texts] of Object.entries(expected.formulas)) {
      const stage = values.stages.find((candidate) => candidate.name === name);
      assert.deepEqual([stage.formula, stage.description], texts, name);
    }
  });
}

const [{ params: PARAMS }] = PYTHON.steps;

test("queries and keys are labeled by tokens where there are some", async () => {
  const { values } = await source.request("steps", { ...PARAMS, tokens: ["a", "b"] });
  assert.deepEqual(values.query_labels, ["a", "b", "q2"]);
  assert.deepEqual(values.key_labels, ["a", "b", "k2", "k3"]);
});

test("projections of x are shown as stages", async () => {
  const identity = [
    [1, 0],
    [0, 1],
  ];
  const { values } = await source.request("steps", { x: PARAMS.q, w_q: identity, w_k: identity, w_v: identity });
  const stages = Object.fromEntries(values.stages.map((stage) => [stage.name, stage.values]));
  assert.deepEqual([stages.X, stages.Q, stages.K], [PARAMS.q, PARAMS.q, PARAMS.q]);
});

test("matrices that do not fit raise an error that names them", async () => {
  const { q, k, v } = PARAMS;
  await assert.rejects(
    source.request("steps", { q, k: k.map((row) => [...row, 0]), v }),
    /same head dimension; got q=2, k=3/,
  );
  await assert.rejects(source.request("steps", { q, k, v: v.slice(1) }), /same length; got k=4, v=3/);
  await assert.rejects(
    source.request("steps", { x: q, w_q: [[1]], w_k: [[1]], w_v: [[1]] }),
    /w_q must have as many rows/,
  );
  await assert.rejects(source.request("steps", { q }), /must be given/);
});

test("options that need Python have no response", async () => {
  const stored = async () => null;
  assert.equal(await offlineSteps(stored, "steps", PARAMS), null);
  await assert.rejects(source.request("steps", { ...PARAMS, dropout: 0.5 }), { name: "NotInFile" });
  await assert.rejects(source.request("steps", { ...PARAMS, normalizer: "gumbel" }), { name: "NotInFile" });
  await assert.rejects(source.request("steps", { ...PARAMS, mask: "random" }), { name: "NotInFile" });
});
