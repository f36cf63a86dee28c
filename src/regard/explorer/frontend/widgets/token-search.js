// A search box for tokens: Enter selects the next match in the map.

import { element } from "../lib/element.js";
import { formatCount } from "../lib/format.js";
import { selectLayer, selectSession, selectTokens } from "../state/selectors.js";

const NO_MATCH = "no match";

/** @param {(query: number, key: number) => void} onMatch */
export function tokenSearch(context, onMatch) {
  const input = element("input", {
    type: "search",
    placeholder: "Find a token",
    "aria-label": "Find a token; Enter goes to the next match",
    class: "search-input",
  });
  const status = element("span", { class: "status-text" });
  let current = { text: "", index: -1 };
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

/** The cells [query, key] of the tokens in which the occurrences of a text begin. */
function findTokens(state, text) {
  const session = selectSession(state);
  if (!session || !text.trim()) return [];
  const layer = selectLayer(state);
  const { rows, columns, isCrossAttention } = selectTokens(session, layer);
  const tokens = matchingTokens(isCrossAttention ? columns : rows, text.trim().toLowerCase());
  const key = (n) => Math.max(0, Math.min(columns.length - 1, isCrossAttention ? n : n + layer.query_offset));
  return tokens.map((n) => [isCrossAttention ? Math.min(n, rows.length - 1) : n, key(n)]);
}

/** The indices of the tokens in which the occurrences of a text begin; an occurrence may span several tokens. */
function matchingTokens(tokens, text) {
  const starts = [];
  let joined = "";
  for (const token of tokens) {
    starts.push(joined.length);
    joined += token.toLowerCase();
  }
  const indices = [];
  let n = 0;
  for (let start = joined.indexOf(text); start >= 0; start = joined.indexOf(text, start + 1)) {
    while (n + 1 < starts.length && starts[n + 1] <= start) n += 1;
    if (indices.at(-1) !== n) indices.push(n);
  }
  return indices;
}
