// A search box for tokens: Enter selects the next match in the map.

import { element } from "../lib/element.js";
import { formatCount } from "../lib/format.js";
import { findTokens } from "./token-matches.js";

/** @import { Context } from "../lib/types.js" */

const NO_MATCH = "no match";

/**
 * @param {Context} context
 * @param {(query: number, key: number) => void} onMatch
 */
export function tokenSearch(context, onMatch) {
  const input = element("input", {
    type: "search",
    placeholder: "Find a token",
    "aria-label": "Find a token; Enter goes to the next match",
    class: "search-input",
  });
  const status = element("span", { class: "status-text" });
  let current = { text: "", index: -1 };
  /** @param {number} by */
  const step = (by) => {
    const matches = findTokens(context.store.get(), input.value);
    if (input.value !== current.text) current = { text: input.value, index: by > 0 ? -1 : 0 };
    if (!matches.length) {
      status.textContent = input.value ? NO_MATCH : "";
      return;
    }
    current.index = (current.index + by + matches.length) % matches.length;
    status.textContent = `${formatCount(current.index + 1)} of ${formatCount(matches.length)}`;
    onMatch(...matches[current.index]);
  };
  input.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    step(event.shiftKey ? -1 : 1);
  });
  input.addEventListener("input", () => {
    const { length } = findTokens(context.store.get(), input.value);
    const result = length ? `${formatCount(length)} ${length === 1 ? "match" : "matches"}` : NO_MATCH;
    status.textContent = input.value ? result : "";
  });
  return element("span", { class: "token-search" }, input, status);
}
