import assert from "node:assert/strict";
import { test } from "node:test";
import { isOfKind, sortEntries } from "../../../../../src/regard/explorer/frontend/views/overview/card-order.js";

const ENTRIES = [0.5, null, 0.9, 0.1].map((value) => ({ value }));
const values = (order) => sortEntries(ENTRIES, order).map(({ value }) => value);

test("heads are sorted by their value, those without one last", () => {
  assert.deepEqual(values("largest"), [0.9, 0.5, 0.1, null]);
  assert.deepEqual(values("smallest"), [0.1, 0.5, 0.9, null]);
  assert.deepEqual(values("layer"), [0.5, null, 0.9, 0.1]);
  assert.deepEqual(
    ENTRIES.map(({ value }) => value),
    [0.5, null, 0.9, 0.1],
  );
});

test("the filter keeps the heads of a kind", () => {
  const table = { heads_by_kind: { previous: [[0, 1, 0.9]] } };
  assert.ok(isOfKind(table, "previous", 0, 1));
  assert.ok(!isOfKind(table, "previous", 1, 1));
  assert.ok(!isOfKind(table, "induction", 0, 1));
  assert.ok(isOfKind(table, "", 5, 5));
  assert.ok(isOfKind(null, "previous", 5, 5));
});
