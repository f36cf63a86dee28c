// Where some tokens look and who looks at them, as two short lists with bars, and a sentence.

import { element, refill } from "./element.js";
import { label, number, percent, quoted } from "./format.js";

const MOST = 9;
const FAINT = 1e-4; // of the largest; what is fainter is not listed

/**
 * @param {HTMLElement} node
 * @param {{found: {looks: Float32Array|null, seen: Float32Array|null, queries: number[], keys: number[]}|null,
 *          tokens: Object, words: boolean, crosses: boolean}} what
 * @returns {string} what a reader of screens says
 */
export function drawLooks(node, { found, tokens, words, crosses }) {
  if (!found) {
    refill(
      node,
      element(
        "p",
        { class: "hint" },
        "Point at a token. What it looks at is shaded ",
        element("b", { class: "of-key" }, "behind"),
        ", who looks at it is marked ",
        element("b", { class: "of-query" }, "below"),
        ". Click locks it, Shift and click add another, dragging selects a span and sums.",
      ),
    );
    return "";
  }
  const { looks, seen, queries, keys } = found;
  const many = Math.max(queries.length, keys.length);
  const names = (list, of, labels) =>
    list
      .map((n) => (many > 1 ? of[n] : labels[n]))
      .join("")
      .trim();
  const subject = queries.length
    ? names(queries, tokens.rows, tokens.rowLabels)
    : names(keys, tokens.columns, tokens.columnLabels);
  const listed = (values, side) =>
    words ? largest(values, tokens[`${side}s`], tokens[`${side}Words`]) : largest(values, tokens[`${side}Labels`], null);
  const first = looks ? listed(looks, "column") : [];
  const second = seen ? listed(seen, "row") : [];
  refill(
    node,
    element(
      "h3",
      { class: "subject" },
      clipped(subject),
      many > 1
        ? element("small", {}, ` ${many} tokens`)
        : element("small", {}, ` token ${queries.length ? tokens.first + queries[0] : keys[0]}`),
    ),
    looks ? barList("looks at", "of-key", first, many > 1 ? "mean of its rows" : "the weights of its row") : null,
    seen
      ? barList("is looked at by", "of-query", second, many > 1 ? "sum of its columns" : "the weights of its column")
      : null,
    many > 1 && looks && seen && !crosses ? within(looks, keys) : null,
  );
  const top = first[0];
  return top ? `${quoted(clipped(subject))} looks most at ${quoted(top.text)}: ${number(top.value)}.` : "";
}

/** How much of a span's weight stays in it. */
function within(looks, keys) {
  const sum = keys.reduce((all, key) => all + looks[key], 0);
  return element(
    "p",
    { class: "sum", "data-sum": sum },
    "Of the span's weight, ",
    element("b", {}, percent(sum)),
    ` stays within it: ${number(sum)}.`,
  );
}

function largest(values, tokens, words) {
  const items = [];
  values.forEach((value, n) => {
    const before = items[items.length - 1];
    if (words && before && words[n] === words[before.at]) {
      before.value += value;
      before.text += tokens[n];
      before.at = n;
    } else items.push({ value, text: tokens[n] ?? "", at: n, first: n });
  });
  const sorted = items
    .filter((item) => item.value > 0)
    .sort((a, b) => b.value - a.value)
    .slice(0, MOST);
  return sorted.filter((item, n) => n < 3 || item.value >= FAINT * sorted[0].value);
}

/** The keys that a row has most weight on, as a list with bars. */
export function topOf(values, tokens, words = null) {
  return barList("looks at", "of-key", largest(values, tokens, words), "the weights of its row");
}

/**
 * A list with bars; a whole bar is a weight of 1 in every list, so that lists can be compared.
 * @param {Array<{value: number, text: string, first: number|null}>} items the largest first; `first` is a token
 */
export function barList(title, colour, items, hint) {
  return element(
    "div",
    { class: `looks ${colour}`, "data-list": title },
    element("h4", {}, title, element("small", {}, hint)),
    element(
      "ol",
      {},
      items.map(({ value, text, first }) => {
        const bar = element("span", { class: "bar-of" });
        bar.style.width = `${100 * Math.min(1, value)}%`;
        return element(
          "li",
          { "data-token": first, "data-value": value },
          element("span", { class: "who" }, label(text), first === null ? null : element("sub", {}, first)),
          element("span", { class: "track" }, bar),
          element("span", { class: "num" }, number(value)),
        );
      }),
    ),
  );
}

function clipped(text) {
  return text.length > 60 ? `${text.slice(0, 59)}…` : label(text);
}
