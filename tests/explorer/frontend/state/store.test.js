import assert from "node:assert/strict";
import { test } from "node:test";
import { createStore } from "../../../../src/regard/explorer/frontend/state/store.js";

test("listeners get the state and the names of changed fields", () => {
  const store = createStore({ a: 1, b: 2 });
  const calls = [];
  store.subscribe((state, changed) => calls.push([state, [...changed]]));
  store.set({ a: 5, b: 2 });
  assert.deepEqual(calls, [[{ a: 5, b: 2 }, ["a"]]]);
  assert.deepEqual(store.get(), { a: 5, b: 2 });
});

test("equal values change nothing, NaN included", () => {
  const store = createStore({ a: NaN });
  const before = store.get();
  store.subscribe(() => assert.fail("nothing changed"));
  store.set({ a: NaN });
  assert.equal(store.get(), before);
});

test("the previous state is not modified", () => {
  const store = createStore({ a: 1 });
  const before = store.get();
  store.set({ a: 2 });
  assert.equal(before.a, 1);
});

test("a listener that unsubscribed is not called", () => {
  const store = createStore({ a: 1 });
  const end = store.subscribe(() => assert.fail("it has ended"));
  end();
  store.set({ a: 2 });
});

test("a listener that an earlier listener ended is not called", () => {
  const store = createStore({ a: 1 });
  let end = () => {};
  store.subscribe(() => end());
  end = store.subscribe(() => assert.fail("its view has closed"));
  store.set({ a: 2 });
});

test("a listener may set the state", () => {
  const store = createStore({ a: 1, b: 0 });
  store.subscribe((state, changed) => {
    if (changed.has("a")) store.set({ b: state.a + 1 });
  });
  store.set({ a: 4 });
  assert.deepEqual(store.get(), { a: 4, b: 5 });
});
