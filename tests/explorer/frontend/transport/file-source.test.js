import assert from "node:assert/strict";
import { test } from "node:test";
import { fileSource } from "../../../../src/regard/explorer/frontend/transport/file-source.js";
import { PYTHON } from "../example-session.js";

const source = fileSource(PYTHON.responses);

test("a stored response is unpacked, and equal requests share it", async () => {
  const first = await source.request("map_info", { session: 0, layer: 0, head: 1 });
  assert.equal(first.values.num_keys, 7);
  assert.equal(await source.request("map_info", { head: 1, layer: 0, session: 0, progress_id: "p" }), first);
});

test("a response that is not in the file raises an error that says so", async () => {
  await assert.rejects(source.request("heads", { session: 0 }), {
    name: "NotInFile",
    message: /does not contain this data. Open the text with regard explore/,
  });
});

test("damaged data raise an error", async () => {
  await assert.rejects(fileSource({ "state{}": "AAAA" }).request("state", {}));
});
