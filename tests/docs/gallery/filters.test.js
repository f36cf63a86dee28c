import assert from "node:assert/strict";
import { test } from "node:test";
import { formatFilters, parseFilters } from "../../../tools/docs/gallery/frontend/filters.js";

const KNOWN = ["causal", "linear-time", "sparse"];

test("the hash keeps the choice, in the order of the buttons", () => {
  assert.deepEqual(parseFilters("#filter=sparse+causal", KNOWN), ["causal", "sparse"]);
  assert.equal(formatFilters(["causal", "sparse"]), "#filter=causal+sparse");
  assert.equal(formatFilters([]), "");
});

test("an empty hash selects nothing, unknown names are ignored, and an anchor is no choice", () => {
  assert.deepEqual(parseFilters("", KNOWN), []);
  assert.deepEqual(parseFilters("#filter=fast+sparse", KNOWN), ["sparse"]);
  assert.equal(parseFilters("#causal", KNOWN), null);
});
