import assert from "node:assert/strict";
import { test } from "node:test";
import { effectiveTheme, nextTheme } from "../../../../src/regard/explorer/frontend/state/theme.js";
import { makeState } from "../example-session.js";

test("a selected theme is in effect", () => {
  assert.equal(effectiveTheme(makeState({ theme: "dark" })), "dark");
  assert.equal(effectiveTheme(makeState({ theme: "light" })), "light");
});

test("the toggle goes through all themes", () => {
  assert.deepEqual(["auto", "light", "dark"].map(nextTheme), ["light", "dark", "auto"]);
  assert.equal(nextTheme("green"), "auto");
});
