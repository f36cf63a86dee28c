// Titles and descriptions of the measures of heads. A kind of head is a measure with a large value.

import { formatWholePercent } from "./format.js";

/** @import { HeadTable } from "./types.js" */

/**
 * Column of the head table: title and description.
 * @type {Record<string, [title: string, description: string]>}
 */
const MEASURES = {
  normalized_entropy: [
    "Normalized entropy",
    "entropy divided by its maximum, from 0 (all weight on one key) to 1 (uniform weights)",
  ],
  entropy: ["Entropy", "entropy of a row of weights in nats, averaged over the queries"],
  confidence: ["Largest weight", "largest weight of a row, averaged over the queries"],
  distance: ["Distance", "mean distance from query to key in tokens, weighted by attention"],
  previous: ["Previous token", "weight on the previous token"],
  next: ["Next token", "weight on the next token"],
  self: ["Self", "weight of a token on itself"],
  first_token: ["First token", "weight on the first token"],
  sink: ["Sink", "weight on the key that receives the most weight"],
  window: ["Local window", "weight on nearby tokens"],
  separator: ["Separators", "weight on punctuation and special tokens"],
  duplicate: ["Duplicate token", "weight on earlier occurrences of the same token"],
  induction: ["Induction", "weight on the token after an earlier occurrence of the same token"],
  positional: ["Positional", "fraction of queries whose largest weight is at the same distance"],
  alignment: ["Alignment", "how well a query predicts the key with its largest weight"],
  vertical: ["Vertical stripes", "weight on a few keys that all queries attend to"],
  slash: ["Diagonals", "weight on a few diagonals"],
};

const INDEX_COLUMNS = ["layer", "head", "path", "offset", "sink_key"];

/**
 * The title of a measure; other columns keep their names.
 * @param {string} name
 */
export function measureTitle(name) {
  return MEASURES[name]?.[0] ?? name;
}

/**
 * The description of a measure; empty for other columns.
 * @param {string} name
 */
export function measureDescription(name) {
  return MEASURES[name]?.[1] ?? "";
}

/**
 * The name of a kind of head for display, such as "first token".
 * @param {string} kind
 */
export function kindLabel(kind) {
  return kind.replaceAll("_", " ");
}

/**
 * The description of a kind of head with its score, for a tooltip.
 * @param {string} kind
 * @param {number} score
 */
export function kindTooltip(kind, score) {
  return `${kindLabel(kind)}, ${formatWholePercent(score)}: ${measureDescription(kind)}`;
}

/**
 * The columns of a head table that are measures, those with a title first.
 * @param {string[]} columns
 */
export function measuresIn(columns) {
  const titled = Object.keys(MEASURES).filter((name) => columns.includes(name));
  const excluded = new Set([...titled, ...INDEX_COLUMNS]);
  return [...titled, ...columns.filter((name) => !excluded.has(name) && !name.endsWith("_uniform"))];
}

const KIND_PRIORITY = [
  "induction",
  "duplicate",
  "previous",
  "next",
  "first_token",
  "separator",
  "window",
  "self",
  "alignment",
  "positional",
];

/**
 * The kinds of a head, the most specific first.
 * @param {HeadTable} table
 * @param {number} layer
 * @param {number} head
 */
export function headKinds(table, layer, head) {
  /** @type {Array<[name: string, score: number]>} */
  const kinds = [];
  for (const [kind, heads] of Object.entries(table.heads_by_kind))
    for (const [l, h, score] of heads) if (l === layer && h === head) kinds.push([kind, score]);
  return kinds.sort((a, b) => KIND_PRIORITY.indexOf(a[0]) - KIND_PRIORITY.indexOf(b[0]));
}
