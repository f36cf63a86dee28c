import assert from "node:assert/strict";
import { test } from "node:test";
import { fileSource } from "../../../../src/regard/explorer/frontend/transport/file-source.js";
import { assertClose } from "../close.js";
import { PYTHON } from "../example-session.js";

const source = fileSource(PYTHON.responses);

for (const { name, params, expected } of PYTHON.requests.filter(({ name }) => name !== "cell_steps")) {
  test(`${name} of ${JSON.stringify(params)} is the response of Python`, async () => {
    const { arrays } = await source.request(name, params);
    assert.ok(Object.keys(arrays).length > 0);
    for (const [array, numbers] of Object.entries(arrays)) assertClose(numbers, expected.arrays[array], array);
  });
}

test("the rows of a tile without the sink sum to 1", async () => {
  const params = { session: 0, layer: 0, head: 1, level: 0, row: 0, column: 0, hidden_keys: [0] };
  const { mean } = (await source.request("tile", params)).arrays;
  const [rows, columns] = mean.shape;
  for (let i = 1; i < rows; i += 1) {
    const row = mean.data.subarray(i * columns, (i + 1) * columns);
    assert.equal(row[0], 0);
    assert.ok(Math.abs(row.reduce((sum, w) => sum + w, 0) - 1) < 1e-6);
  }
});

test("the lines of a query have at least the mass, and no line too many", async () => {
  const params = { session: 0, layer: 0, heads: [1], query_start: 4, query_end: 5, mass: 0.7 };
  const { weight } = (await source.request("top_weights", params)).arrays;
  const sum = weight.data.reduce((total, w) => total + w, 0);
  assert.ok(sum >= 0.7 - 1e-6 && sum - weight.data.at(-1) < 0.7);
});

test("a head that is not in the file has no weights", async () => {
  const params = { session: 0, layer: 0, heads: [9], queries: [0] };
  await assert.rejects(source.request("query_weights", params), { name: "NotInFile" });
});
