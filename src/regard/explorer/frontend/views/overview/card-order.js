// The order of the cards of the Overview, and which of them a filter keeps.

/** @import { HeadTable, State } from "../../lib/types.js" */

/**
 * The entries in the order that the state selects; heads without a value are last.
 * @template {{value: number | null}} Entry
 * @param {Entry[]} entries in order of layers
 * @param {State["headOrder"]} order
 */
export function sortEntries(entries, order) {
  if (order === "layer") return entries;
  const sign = order === "smallest" ? 1 : -1;
  return entries.slice().sort((a, b) => {
    if (a.value === null || b.value === null) return Number(a.value === null) - Number(b.value === null);
    return sign * (a.value - b.value);
  });
}

/**
 * Whether a head is of a kind; all heads are, before they are measured and without a filter.
 * @param {HeadTable | null} table
 * @param {string} kind
 * @param {number} layer
 * @param {number} head
 */
export function isOfKind(table, kind, layer, head) {
  if (!kind || !table) return true;
  return (table.heads_by_kind[kind] ?? []).some(([l, h]) => l === layer && h === head);
}
