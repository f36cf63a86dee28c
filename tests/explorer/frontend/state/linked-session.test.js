import assert from "node:assert/strict";
import { test } from "node:test";
import { findSession, historyKey } from "../../../../src/regard/explorer/frontend/state/linked-session.js";
import { makeSession } from "../example-session.js";

const SESSIONS = [
  makeSession({ id: 1, text: "whale" }),
  makeSession({ id: 2, text: "boat", model: "bert" }),
  makeSession({ id: 3, text: "boat" }),
];
const idOf = (...args) => findSession({ sessions: SESSIONS, models: [] }, ...args)?.id ?? null;

test("without a text, the id selects the session", () => {
  assert.equal(idOf(2), 2);
  assert.equal(idOf(9), null);
  assert.equal(idOf(undefined), null);
});

test("a session with the id, but another text, is not the linked one", () => {
  assert.equal(idOf(1, "boat"), 2);
  assert.equal(idOf(1, "sea"), null);
});

test("of several sessions of the text, the one with the id and the model is selected", () => {
  assert.equal(idOf(3, "boat"), 3);
  assert.equal(idOf(3, "boat", "bert"), 2);
  assert.equal(idOf(1, "boat", "language"), 3);
});

test("URLs of one view and text share a history entry", () => {
  const key = historyKey("#view=map&text=whale&model=language&head=1&session=1");
  assert.equal(historyKey("#view=map&text=whale&model=language&head=2&session=5"), key);
  assert.notEqual(historyKey("#view=text&text=whale&model=language"), key);
  assert.notEqual(historyKey("#view=map&text=boat&model=language"), key);
  assert.equal(historyKey("#"), historyKey("#view=overview&session=0"));
  assert.notEqual(historyKey("#session=1"), historyKey("#session=2"));
});
