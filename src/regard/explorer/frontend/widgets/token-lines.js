// The items of a text, tokens or words, and the lines that they are broken into.

/** @import { PartialCharacters } from "../lib/types.js" */

/**
 * A token, or a word of the tokens first to last; `part` is set for a token that is a part of a character.
 * @typedef {{text: string, first: number, last: number, part?: [label: string, bytes: string] | null}} Item
 * @typedef {{first: number, last: number, width: number}} Line the items first to last, and their width
 */

/**
 * One item for each token.
 * @param {string[]} tokens
 * @param {PartialCharacters} parts
 * @returns {Item[]}
 */
export function itemPerToken(tokens, parts) {
  return tokens.map((text, n) => ({ text, first: n, last: n, part: parts[n] ?? null }));
}

/**
 * Joins the tokens of each word into one item.
 * @param {string[]} tokens
 * @param {number[]} words the word id of each token
 * @returns {Item[]}
 */
export function itemPerWord(tokens, words) {
  /** @type {Item[]} */
  const items = [];
  tokens.forEach((text, n) => {
    const previous = items.at(-1);
    if (previous && words[n] === words[n - 1]) {
      previous.text += text;
      previous.last = n;
    } else items.push({ text, first: n, last: n });
  });
  return items;
}

/**
 * Breaks a text into lines of at most `maxWidth`, and after line breaks. A wider item has a line of its own.
 * @param {Item[]} items
 * @param {(item: Item) => number} widthOf
 * @param {number} maxWidth
 */
export function breakIntoLines(items, widthOf, maxWidth) {
  /** @type {Line[]} */
  const lines = [];
  let line = { first: 0, last: -1, width: 0 };
  items.forEach((item, n) => {
    const width = widthOf(item);
    if (line.width + width > maxWidth && line.last >= line.first) {
      lines.push(line);
      line = { first: n, last: n - 1, width: 0 };
    }
    line.last = n;
    line.width += width;
    if (item.text.includes("\n")) {
      lines.push(line);
      line = { first: n + 1, last: n, width: 0 };
    }
  });
  if (line.last >= line.first) lines.push(line);
  return lines;
}
