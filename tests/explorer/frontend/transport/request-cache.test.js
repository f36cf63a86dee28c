import assert from "node:assert/strict";
import { test } from "node:test";
import { RequestCache } from "../../../../src/regard/explorer/frontend/transport/request-cache.js";

/** A source that counts its requests; a request with `fails` is rejected. */
function countingSource() {
  const names = [];
  const request = async (name, params) => {
    names.push(name);
    if (params.fails) throw new Error("failed");
    if (params.delay) await new Promise((resolve) => setTimeout(resolve, params.delay));
    return { values: name === "progress" ? { text: "half", fraction: 0.5 } : { name, ...params }, arrays: {} };
  };
  return { names, request };
}

test("equal requests share one response", async () => {
  const source = countingSource();
  const cache = new RequestCache(source);
  const [first, second] = await Promise.all([1, 1].map((head) => cache.requestCached(0, "map_info", { head })));
  assert.equal(first, second);
  await cache.requestCached(0, "map_info", { head: 2 });
  await cache.requestCached(1, "map_info", { head: 1 });
  assert.equal(source.names.length, 3);
});

test("a failed request is sent again", async () => {
  const source = countingSource();
  const cache = new RequestCache(source);
  for (let n = 0; n < 2; n += 1) await assert.rejects(cache.requestCached(0, "map_info", { fails: true }), /failed/);
  assert.equal(source.names.length, 2);
});

test("the oldest response is dropped", async () => {
  const source = countingSource();
  const cache = new RequestCache(source);
  for (let head = 0; head <= 200; head += 1) await cache.requestCached(0, "map_info", { head });
  await cache.requestCached(0, "map_info", { head: 200 });
  assert.equal(source.names.length, 201);
  await cache.requestCached(0, "map_info", { head: 0 });
  assert.equal(source.names.length, 202);
});

test("responses are reported, and long requests as actions", async () => {
  const calls = [];
  const cache = new RequestCache(countingSource(), (isAction) => calls.push(isAction));
  await cache.request("state", {});
  await cache.requestWithProgress("run_model", { text: "a" }, () => {});
  await assert.rejects(cache.request("state", { fails: true }));
  assert.deepEqual(calls, [false, true]);
});

test("the progress of a long request is shown until the response", async () => {
  const source = countingSource();
  const progress = [];
  const show = (text, fraction) => progress.push([text, fraction]);
  const response = await new RequestCache(source).requestWithProgress("run_model", { text: "a", delay: 500 }, show);
  assert.deepEqual(progress, [["half", 0.5]]);
  assert.match(response.values.progress_id, /^page-/);
  const count = source.names.length;
  await new Promise((resolve) => setTimeout(resolve, 450));
  assert.equal(source.names.length, count, "no requests after the response");
});
