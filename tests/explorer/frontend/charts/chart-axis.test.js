import assert from "node:assert/strict";
import { test } from "node:test";
import { axisTicks, createAxis } from "../../../../src/regard/explorer/frontend/charts/chart-axis.js";

const round = (numbers) => numbers.map((x) => Number(x.toPrecision(6)));

test("a logarithmic axis maps equal factors to equal distances", () => {
  const axis = createAxis([1, 100], true, 0, 200);
  assert.deepEqual([1, 10, 100].map(axis.at).map(Math.round), [0, 100, 200]);
});

test("a logarithmic axis cannot show zero and negative numbers", () => {
  const axis = createAxis([0, -5, 2, NaN, 8], true, 0, 1);
  assert.deepEqual([axis.low, axis.high], [2, 8]);
  assert.deepEqual([0, -1, NaN, Infinity, 3].map(axis.has), [false, false, false, false, true]);
});

test("a linear axis has a margin, but no negative part for positive numbers", () => {
  const axis = createAxis([0, 10], false, 0, 100);
  assert.equal(axis.low, 0);
  assert.ok(Math.abs(axis.high - 10.4) < 1e-12);
  assert.ok(createAxis([-10, 10], false, 0, 100).low < -10);
});

test("an axis of one value or of no values has a positive length", () => {
  for (const [values, isLog] of [
    [[3], true],
    [[3], false],
    [[0], false],
    [[], true],
    [[], false],
  ]) {
    const { low, high } = createAxis(values, isLog, 0, 1);
    assert.ok(high > low, `${values} ${isLog}`);
  }
});

test("an axis may point down", () => {
  const axis = createAxis([1, 10], true, 300, 0);
  assert.deepEqual([axis.at(1), axis.at(10)], [300, 0]);
});

const TICKS = [
  [{ low: 0, high: 10, isLog: false }, 5, 10, [0, 2, 4, 6, 8, 10]],
  [{ low: -1, high: 1, isLog: false }, 4, 10, [-1, -0.5, 0, 0.5, 1]],
  [{ low: 0, high: 0.07, isLog: false }, 4, 10, [0, 0.02, 0.04, 0.06]],
  [{ low: 1, high: 1e6, isLog: true }, 4, 10, [1, 100, 10000, 1e6]],
  [{ low: 64, high: 1024, isLog: true }, 10, 2, [64, 128, 256, 512, 1024]],
  [{ low: 64, high: 1024, isLog: true }, 3, 2, [64, 256, 1024]],
  [{ low: 1, high: 10, isLog: true }, 6, 10, [1, 2, 5, 10]],
  [{ low: 3, high: 30, isLog: true }, 6, 10, [5, 10, 20]],
  [{ low: 1, high: 99, isLog: true }, 3, 10, [1, 10]],
];
for (const [axis, maxTicks, base, expected] of TICKS) {
  test(`ticks from ${axis.low} to ${axis.high}${axis.isLog ? `, logarithmic to base ${base}` : ""}`, () => {
    assert.deepEqual(round(axisTicks(axis, maxTicks, base)), expected);
  });
}

test("a very short logarithmic axis has linear ticks", () => {
  const ticks = axisTicks({ low: 1.1, high: 1.3, isLog: true }, 5);
  assert.ok(ticks.length >= 2 && ticks.every((x) => x >= 1.1 - 1e-9 && x <= 1.3 + 1e-9), String(ticks));
});
