import assert from "node:assert/strict";
import { test } from "node:test";
import { fileSource } from "../../../src/regard/explorer/frontend/transport/file-source.js";
import { computeSteps, stageMatrix } from "../../../tools/docs/guide/frontend/compute-steps.js";
import { PYTHON } from "../../explorer/frontend/example-session.js";

const { values: templates } = await fileSource(PYTHON.responses).request("stage_templates", {});
const causal = PYTHON.steps.find(({ params }) => params.mask === "causal" && params.normalizer === "softmax");

test("the weights of a causal call are those of Python", async () => {
  const weights = stageMatrix(await computeSteps(templates, causal.params), "weights");
  for (const [i, row] of weights.entries())
    for (const [j, a] of row.entries()) assert.ok(Math.abs(a - causal.expected.stages.weights[i][j]) < 1e-12);
});

test("an unknown mask and an unknown stage raise an error that lists the names", async () => {
  await assert.rejects(computeSteps(templates, { ...causal.params, mask: "none of these" }), /must be one of causal/);
  const steps = await computeSteps(templates, causal.params);
  assert.throws(() => stageMatrix(steps, "votes"), /must be one of Q, K.*got votes/);
});
