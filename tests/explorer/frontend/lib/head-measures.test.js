import assert from "node:assert/strict";
import { test } from "node:test";
import {
  headKinds,
  kindLabel,
  kindTooltip,
  measureDescription,
  measuresIn,
  measureTitle,
} from "../../../../src/regard/explorer/frontend/lib/head-measures.js";

test("a measure has a title and a description, another column its name", () => {
  assert.equal(measureTitle("first_token"), "First token");
  assert.equal(measureDescription("self"), "weight of a token on itself");
  assert.equal(measureTitle("my_measure"), "my_measure");
  assert.equal(measureDescription("my_measure"), "");
});

test("the tooltip of a kind has its score and its description", () => {
  assert.equal(kindLabel("first_token"), "first token");
  assert.equal(kindTooltip("previous", 0.876), "previous, 88%: weight on the previous token");
});

test("titled measures come first, indices and uniform columns are left out", () => {
  const columns = ["layer", "head", "custom", "sink", "sink_uniform", "entropy", "sink_key"];
  assert.deepEqual(measuresIn(columns), ["entropy", "sink", "custom"]);
});

test("the kinds of a head are sorted by priority", () => {
  const heads = {
    previous: [[0, 1, 0.9]],
    induction: [
      [0, 1, 0.5],
      [1, 1, 0.9],
    ],
    self: [[0, 2, 1]],
  };
  assert.deepEqual(headKinds({ heads_by_kind: heads }, 0, 1), [
    ["induction", 0.5],
    ["previous", 0.9],
  ]);
  assert.deepEqual(headKinds({ heads_by_kind: heads }, 2, 0), []);
});
