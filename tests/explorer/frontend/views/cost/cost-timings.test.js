import assert from "node:assert/strict";
import { test } from "node:test";
import {
  measureTimings,
  timingsByMechanism,
} from "../../../../../src/regard/explorer/frontend/views/cost/cost-timings.js";

const MODEL = { embed_dim: 768, num_heads: 12, num_layers: 12, ffn_dim: 3072, gated: false };
const timing = (mechanism, seq_len, changes = {}) => ({
  mechanism,
  seq_len,
  seconds: 0.1,
  num_heads: 8,
  head_dim: 64,
  ...changes,
});
const TIMINGS = [timing("linear", 512), timing("linear", 256), timing("softmax", 256)];

test("the times of a mechanism are in order of length", () => {
  assert.deepEqual(timingsByMechanism(TIMINGS, MODEL).get("linear"), [
    [256, 0.1],
    [512, 0.1],
  ]);
});

test("timings of another head size are left out", () => {
  const timings = [...TIMINGS, timing("linear", 1024, { head_dim: 32 }), timing("linear", 1024, { num_heads: 4 })];
  assert.equal(timingsByMechanism(timings, MODEL).get("linear").length, 2);
  assert.equal(timingsByMechanism(timings, { ...MODEL, num_heads: 6 }).size, 0);
});

test("mechanisms are measured one after another until the view is closed", async () => {
  const measured = [];
  const errors = [];
  const context = {
    request: async (_name, params) => {
      if (params.mechanism === "broken") throw new Error("failed");
      return { values: { ...params, seconds: 1 } };
    },
    showError: (error) => errors.push(error.message),
  };
  const callbacks = {
    showStatus: () => {},
    addTiming: (result) => measured.push([result.mechanism, result.seq_len, result.num_heads]),
    isCancelled: () => measured.length === 3,
  };
  await measureTimings(context, ["a", "broken", "b"], MODEL, callbacks);
  assert.deepEqual(measured, [
    ["a", 256, 8],
    ["b", 256, 8],
    ["a", 512, 8],
  ]);
  assert.deepEqual(errors, ["failed"]);
});
