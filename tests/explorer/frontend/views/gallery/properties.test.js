import assert from "node:assert/strict";
import { test } from "node:test";
import { hasProperties, toggleProperty } from "../../../../../src/regard/explorer/frontend/views/gallery/properties.js";

test("a mechanism is shown if it has all selected properties", () => {
  assert.ok(hasProperties(["causal", "linear time"], []));
  assert.ok(hasProperties(["causal", "linear time"], ["linear time", "causal"]));
  assert.ok(!hasProperties(["causal", "linear time"], ["causal", "sparse"]));
});

test("a click adds or removes a property, and keeps the order", () => {
  const all = ["causal", "linear time", "sparse"];
  assert.deepEqual(toggleProperty(all, ["sparse"], "causal"), ["causal", "sparse"]);
  assert.deepEqual(toggleProperty(all, ["causal", "sparse"], "causal"), ["sparse"]);
  assert.deepEqual(toggleProperty(all, [""], "sparse"), ["sparse"]);
});
