import assert from "node:assert/strict";
import { test } from "node:test";
import { fileSource } from "../../../../src/regard/explorer/frontend/transport/file-source.js";
import { assertClose } from "../close.js";
import { PYTHON } from "../example-session.js";

const source = fileSource(PYTHON.responses);

for (const { params, expected } of PYTHON.requests.filter(({ name }) => name === "cell_steps")) {
  test(`the arithmetic of query ${params.query} and key ${params.key} is that of Python`, async () => {
    const { values } = await source.request("cell_steps", params);
    const { code, ...numbers } = expected.values;
    assertClose(values, numbers);
    assert.equal(values.code, code);
  });
}

test("a masked key has weight 0 and no score", async () => {
  const { values } = await source.request("cell_steps", { session: 0, layer: 0, head: 0, query: 0, key: 6 });
  assert.deepEqual([values.is_visible, values.weight, values.score, values.exponent], [false, 0, null, null]);
});
