import assert from "node:assert/strict";
import { test } from "node:test";
import {
  breakIntoLines,
  itemPerToken,
  itemPerWord,
} from "../../../../src/regard/explorer/frontend/widgets/token-lines.js";

const lines = (texts, maxWidth) =>
  breakIntoLines(itemPerToken(texts, {}), ({ text }) => text.length, maxWidth).map(({ first, last }) => [first, last]);

test("each token is an item, with its part of a character", () => {
  assert.deepEqual(itemPerToken(["a", "b"], { 1: ["é‹C3›", "C3"] }), [
    { text: "a", first: 0, last: 0, part: null },
    { text: "b", first: 1, last: 1, part: ["é‹C3›", "C3"] },
  ]);
});

test("the tokens of a word are one item", () => {
  assert.deepEqual(itemPerWord([" cap", "tain", " saw", " it"], [0, 0, 1, 2]), [
    { text: " captain", first: 0, last: 1 },
    { text: " saw", first: 2, last: 2 },
    { text: " it", first: 3, last: 3 },
  ]);
});

test("a line ends before the item that does not fit", () => {
  assert.deepEqual(lines(["aaa", "bbb", "cc", "d"], 6), [
    [0, 1],
    [2, 3],
  ]);
});

test("an item wider than the line has a line of its own", () => {
  assert.deepEqual(lines(["aaaaaaaa", "b", "cccccccc"], 6), [
    [0, 0],
    [1, 1],
    [2, 2],
  ]);
});

test("a line ends after a line break", () => {
  assert.deepEqual(lines(["a", "b\n", "c"], 10), [
    [0, 1],
    [2, 2],
  ]);
  assert.deepEqual(lines(["a\n"], 10), [[0, 0]]);
});

test("a text without tokens has no lines", () => assert.deepEqual(lines([], 10), []));
