import assert from "node:assert/strict";
import { EventEmitter } from "node:events";
import { test } from "node:test";
import { decodeBase64 } from "../../../../src/regard/explorer/frontend/transport/unpack.js";
import { widgetSource } from "../../../../src/regard/explorer/frontend/transport/widget-source.js";
import { PYTHON } from "../example-session.js";

const packed = decodeBase64(PYTHON.packed.arrays);

/** The model of a widget, whose messages are collected. */
function makeModel() {
  const model = new EventEmitter();
  return Object.assign(model, { messages: [], send: (message) => model.messages.push(message) });
}

test("a response belongs to the request with its id", async () => {
  const model = makeModel();
  const source = widgetSource(model);
  const responses = [source.request("state", { a: 1 }), source.request("heads", {})];
  const [first, second] = model.messages;
  assert.deepEqual([first.name, first.params], ["state", { a: 1 }]);
  assert.notEqual(first.id, second.id);
  model.emit("msg:custom", { id: second.id, error: "no heads" }, []);
  model.emit("msg:custom", { id: "of another view" }, [packed]);
  model.emit("msg:custom", { id: first.id }, [packed]);
  assert.deepEqual((await responses[0]).values, { name: "Größe" });
  await assert.rejects(responses[1], { message: "no heads" });
  source.end();
});

test("arrays are read from an unaligned part of a buffer", async () => {
  const model = makeModel();
  const source = widgetSource(model);
  const response = source.request("state", {});
  const bytes = new Uint8Array(packed.byteLength + 5);
  bytes.set(new Uint8Array(packed), 3);
  const view = new DataView(bytes.buffer, 3, packed.byteLength);
  model.emit("msg:custom", { id: model.messages[0].id }, [view]);
  assert.deepEqual([...(await response).arrays.floats.data], [1.5, -2, 0.25]);
  source.end();
});

test("a closed view receives no messages", () => {
  const model = makeModel();
  widgetSource(model).end();
  assert.equal(model.listenerCount("msg:custom"), 0);
});
