import assert from "node:assert/strict";
import { test } from "node:test";
import { deflateSync } from "node:zlib";
import { decodeBase64, inflate, unpack } from "../../../../src/regard/explorer/frontend/transport/unpack.js";
import { PYTHON } from "../example-session.js";

const { values, arrays } = unpack(decodeBase64(PYTHON.packed.arrays));

test("values are JSON, with all characters", () => assert.deepEqual(values, { name: "Größe" }));

test("arrays have the type and the shape of Python", () => {
  assert.ok(arrays.floats.data instanceof Float32Array);
  assert.deepEqual([...arrays.floats.data], [1.5, -2, 0.25]);
  assert.deepEqual(arrays.floats.shape, [1, 3]);
  assert.deepEqual([...arrays.integers.data], [-7, 2 ** 31 - 1]);
  assert.deepEqual([...arrays.bytes.data], [0, 1, 255]);
  assert.deepEqual([arrays.empty.data.length, arrays.empty.shape], [0, [0, 3]]);
});

test("float16 becomes float32, with subnormal numbers and infinity", () => {
  const [zero, negative, largest, subnormal, tenth, infinity] = arrays.halves.data;
  assert.deepEqual([zero, negative, largest, infinity], [0, -1.5, 65504, Infinity]);
  assert.equal(subnormal, 2 ** -24);
  assert.ok(Math.abs(tenth - 0.1) < 1e-4);
});

test("a response may have no arrays", () => {
  assert.deepEqual(unpack(decodeBase64(PYTHON.packed["values only"])), { values: { n: [1, null] }, arrays: {} });
});

test("zlib bytes are decompressed", async () => {
  const text = "the white whale ".repeat(50);
  const packed = deflateSync(Buffer.from(text));
  assert.ok(packed.length < text.length);
  assert.equal(new TextDecoder().decode(await inflate(new Uint8Array(packed).buffer)), text);
});
