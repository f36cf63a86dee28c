// Search for a token and go to it: as a query first, and as the key that this query looks at most.

import { element } from "./element.js";
import { count } from "./format.js";
import { layerOf, shownOf, tokensOf } from "./subject.js";

/** @param {(query: number, key: number) => void} go */
export function searchBox(context, go) {
  const input = element("input", {
    type: "search",
    placeholder: "Find a token",
    "aria-label": "Find a token; Enter goes to the next one",
    class: "search",
  });
  const told = element("span", { class: "told" });
  let last = { text: "", at: -1 };
  const next = (by) => {
    const places = found(context.store.get(), input.value);
    if (input.value !== last.text) last = { text: input.value, at: by > 0 ? -1 : 0 };
    if (!places.length) {
      told.textContent = input.value ? "not there" : "";
      return;
    }
    last.at = (last.at + by + places.length) % places.length;
    told.textContent = `${count(last.at + 1)} of ${count(places.length)}`;
    go(...places[last.at]);
  };
  input.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    next(event.shiftKey ? -1 : 1);
  });
  input.addEventListener("input", () => {
    const places = found(context.store.get(), input.value);
    told.textContent = input.value ? (places.length ? `${count(places.length)} found` : "not there") : "";
  });
  return element("span", { class: "searching" }, input, told);
}

/** Where the letters occur: tokens that a typed text begins or lies in, as [query, key]. */
function found(state, text) {
  const shown = shownOf(state);
  if (!shown || !text.trim()) return [];
  const layer = layerOf(state);
  const { rows, columns, crosses } = tokensOf(shown, layer);
  const places = matches(crosses ? columns : rows, text.trim().toLowerCase());
  const key = (n) => Math.max(0, Math.min(columns.length - 1, crosses ? n : n + layer.first));
  return places.map((n) => [crosses ? Math.min(n, rows.length - 1) : n, key(n)]);
}

function matches(tokens, text) {
  const starts = [];
  let joined = "";
  for (const token of tokens) {
    starts.push(joined.length);
    joined += token.toLowerCase();
  }
  const places = [];
  let n = 0;
  for (let at = joined.indexOf(text); at >= 0; at = joined.indexOf(text, at + 1)) {
    while (n + 1 < starts.length && starts[n + 1] <= at) n += 1;
    if (places[places.length - 1] !== n) places.push(n);
  }
  return places;
}
