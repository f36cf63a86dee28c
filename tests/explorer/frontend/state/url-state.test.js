import assert from "node:assert/strict";
import { test } from "node:test";
import { INITIAL_STATE } from "../../../../src/regard/explorer/frontend/state/store.js";
import {
  fromHash,
  MAX_LINK_TEXT_CHARACTERS,
  toHash,
} from "../../../../src/regard/explorer/frontend/state/url-state.js";
import { makeSession, makeState } from "../example-session.js";

const ROUND_TRIPS = [
  { view: "lines", lineHeads: [0, 3], lineMass: 0.35, lineStart: 12 },
  { layer: 0, head: 0, query: 0, key: 5 },
  { pinnedTokens: [1, 1_234_567], pinnedSide: "key" },
  { viewport: [1.5, 0, 12.25], hideSink: true, showWords: true },
  { pooling: "mean", scale: "rank", palette: "purple-green", theme: "dark" },
  { measure: "entropy", headOrder: "smallest", kindFilter: "first_token" },
  { experiment: "low rank & co", generationStep: 7, otherSession: 3 },
];
for (const fields of ROUND_TRIPS) {
  test(`a URL restores ${Object.keys(fields).join(", ")}`, () => {
    const hash = toHash({ ...INITIAL_STATE, ...fields }, INITIAL_STATE);
    assert.deepEqual(fromHash(`#${hash}`).state, fields);
  });
}

test("the initial state has an empty URL", () => {
  assert.equal(toHash(INITIAL_STATE, INITIAL_STATE), "");
});

test("the URL has the text and the model of the session", () => {
  const session = makeSession();
  const linked = fromHash(toHash(makeState({}, [session]), INITIAL_STATE));
  assert.deepEqual([linked.text, linked.model], [session.text, "language"]);
});

test("the URL has no long text", () => {
  const text = "a".repeat(MAX_LINK_TEXT_CHARACTERS + 1);
  assert.equal(fromHash(toHash(makeState({}, [makeSession({ text })]), INITIAL_STATE)).text, null);
});

const IGNORED = [
  "theme=green",
  "layer=",
  "layer=x",
  "head=NaN",
  "pinned=1,x",
  "pinned=",
  "heads=1,,2",
  "unknown=1",
  "pooling=sum",
];
for (const hash of IGNORED) {
  test(`${hash} is ignored`, () => assert.deepEqual(fromHash(hash).state, {}));
}

test("positions of the map have six digits", () => {
  const hash = toHash({ ...INITIAL_STATE, viewport: [0.123456789, 1, 2] }, INITIAL_STATE);
  assert.deepEqual(fromHash(hash).state.viewport, [0.123457, 1, 2]);
});
