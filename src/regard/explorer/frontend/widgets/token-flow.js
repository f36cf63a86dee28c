// A text of any length as tokens that can be hovered and selected. Only visible lines are in the DOM.

import { context2d, element } from "../lib/element.js";
import { showWhitespace } from "../lib/format.js";
import { breakIntoLines, itemPerToken, itemPerWord } from "./token-lines.js";

/**
 * @import { PartialCharacters } from "../lib/types.js"
 * @import { Item, Line } from "./token-lines.js"
 */

const OVERSCAN_LINES = 6; // rendered lines above and below the visible ones
const TOKEN_PADDING_PX = 4;
const MAX_LARGE_TOKENS = 60; // longer texts have smaller type
const TOKEN_GAP_PX = 6; // between tokens, if no token contains spaces
const NO_TOKEN = -1;

/** @typedef {{keyShade: number, queryShade: number, state: string}} TokenMark shades are from 0 to 1 */

export class TokenFlow {
  /**
   * @param {{label: string, point: (item: Item|null) => void, pick: (item: Item, add: boolean) => void,
   *          span: (item: Item) => void, clear: () => void}} handlers called when the pointer is over an item, when an
   *   item is clicked, when a range of items is dragged over, and when the selection is cleared
   */
  constructor(handlers) {
    this.handlers = handlers;
    /** @type {Item[]} */
    this.items = [];
    /** @type {Line[]} */
    this.lines = [];
    /** @type {(item: Item) => TokenMark | null} */
    this.mark = () => null;
    this.cursor = NO_TOKEN;
    this.lineHeight = 34; // in pixels
    this.gap = 0;
    /** @type {Map<number, HTMLElement>} */
    this.spans = new Map(); // of the rendered items
    /** @type {Map<number, HTMLElement>} */
    this.rows = new Map(); // the rendered lines
    this.inner = element("div", { class: "token-flow-inner" });
    this.node = element(
      "div",
      {
        class: "token-flow",
        tabindex: 0,
        role: "listbox",
        "aria-label": handlers.label,
        "aria-multiselectable": "true",
      },
      this.inner,
    );
    this.node.addEventListener("scroll", () => this.render());
    this.observer = new ResizeObserver(() => this.layout());
    this.observer.observe(this.node);
    this.addListeners();
  }

  dispose() {
    this.observer.disconnect();
  }

  /**
   * @param {string[]} tokens
   * @param {{words?: number[]|null, parts?: PartialCharacters}} [options] `words`: the word id of each
   *   token, to show words instead of tokens; `parts`: label and bytes of the tokens that are partial characters
   */
  show(tokens, { words = null, parts = {} } = {}) {
    this.node.classList.toggle("is-large", tokens.length <= MAX_LARGE_TOKENS);
    this.gap = tokens.some((text) => /\s/.test(text)) ? 0 : TOKEN_GAP_PX; // tokens without spaces are words
    this.node.classList.toggle("spaced-tokens", this.gap > 0);
    this.items = words ? itemPerWord(tokens, words) : itemPerToken(tokens, parts);
    this.cursor = NO_TOKEN;
    this.layout();
  }

  /**
   * Sets the shading and the state of all items. Shades are from 0 to 1.
   * @param {(item: Item) => TokenMark | null} mark
   */
  setTokenMarks(mark) {
    this.mark = mark;
    for (const [n, span] of this.spans) this.applyMark(n, span);
  }

  /**
   * Scrolls a token into view.
   * @param {number} token
   */
  reveal(token) {
    const line = this.lines.findIndex(({ last }) => this.items[last]?.last >= token);
    if (line < 0) return;
    const [top, height] = [line * this.lineHeight, this.node.clientHeight];
    if (top < this.node.scrollTop || top + this.lineHeight > this.node.scrollTop + height)
      this.node.scrollTop = top - height / 2;
  }

  /** Breaks the text into lines by the widths of its tokens. */
  layout() {
    const maxWidth = this.node.clientWidth - 24;
    if (maxWidth <= 0) return;
    this.lineHeight = 2 * Math.round(parseFloat(getComputedStyle(this.node).fontSize));
    this.node.style.setProperty("--line-height", `${this.lineHeight}px`);
    const measure = textMeasurer(this.node);
    /** @param {Item} item */
    const widthOf = (item) =>
      measure(showWhitespace(item.text)) + bytesWidth(item, measure) + TOKEN_PADDING_PX + this.gap;
    this.lines = breakIntoLines(this.items, widthOf, maxWidth);
    this.inner.style.height = `${this.lines.length * this.lineHeight}px`;
    this.spans.clear();
    this.rows.clear();
    this.inner.replaceChildren();
    this.render();
  }

  /** Adds the visible lines to the DOM and removes all others. */
  render() {
    const first = Math.max(0, Math.floor(this.node.scrollTop / this.lineHeight) - OVERSCAN_LINES);
    const last = Math.min(
      this.lines.length,
      Math.ceil((this.node.scrollTop + this.node.clientHeight) / this.lineHeight) + OVERSCAN_LINES,
    );
    for (const [n, row] of this.rows) {
      if (n >= first && n < last) continue;
      for (let index = this.lines[n].first; index <= this.lines[n].last; index += 1) this.spans.delete(index);
      this.rows.delete(n);
      row.remove();
    }
    for (let n = first; n < last; n += 1) {
      if (this.rows.has(n)) continue;
      const row = this.row(n);
      this.rows.set(n, row);
      this.inner.append(row);
    }
  }

  /** @param {number} n */
  row(n) {
    const row = element("div", { class: "token-flow-line", "data-line": n, role: "presentation" });
    row.style.top = `${n * this.lineHeight}px`;
    for (let index = this.lines[n].first; index <= this.lines[n].last; index += 1) {
      const item = this.items[index];
      const isWrapped = index === this.lines[n].first && index > 0 && !this.items[index - 1].text.includes("\n");
      const text = showWhitespace(item.text);
      const span = element(
        "span",
        { class: "token", role: "option", "data-item": index, "data-token": item.first },
        isWrapped ? text.replace(/^ (?=.)/, "") : text,
        item.part ? element("small", { class: "token-bytes" }, item.part[1]) : null,
      );
      if (item.part) span.title = `Part of “${item.part[0].replace(/‹.*$/, "").trim()}”, bytes ${item.part[1]}`;
      this.spans.set(index, span);
      this.applyMark(index, span);
      row.append(span);
    }
    return row;
  }

  /**
   * @param {number} index
   * @param {HTMLElement} span
   */
  applyMark(index, span) {
    const mark = this.mark(this.items[index]);
    /**
     * @param {string} name
     * @param {number} fraction
     */
    const mix = (name, fraction) => `color-mix(in srgb, var(--${name}) ${(100 * fraction).toFixed(1)}%, transparent)`;
    span.style.backgroundColor = mark && mark.keyShade > 0 ? mix("key", 0.06 + 0.6 * mark.keyShade) : "";
    span.style.boxShadow =
      mark && mark.queryShade > 0 ? `inset 0 -4px 0 ${mix("query", 0.15 + 0.85 * mark.queryShade)}` : "";
    span.dataset.state = mark?.state ?? "";
    span.setAttribute("aria-selected", String(mark?.state === "pinned"));
    span.classList.toggle("has-cursor", index === this.cursor);
  }

  addListeners() {
    /** @param {Event} event */
    const itemAt = (event) => {
      const span = event.target instanceof Element ? event.target.closest(".token") : null;
      return span instanceof HTMLElement && this.node.contains(span) ? Number(span.dataset.item) : NO_TOKEN;
    };
    let dragStart = NO_TOKEN;
    let dragEnd = NO_TOKEN;
    this.node.addEventListener("pointerover", (event) => {
      const index = itemAt(event);
      if (index === NO_TOKEN) {
        if (dragStart === NO_TOKEN) this.handlers.point(null);
      } else if (dragStart !== NO_TOKEN && event.buttons) {
        dragEnd = index;
        if (dragEnd !== dragStart) this.selectSpan(dragStart, dragEnd);
      } else this.handlers.point(this.items[index]);
    });
    this.node.addEventListener("pointerleave", () => {
      if (dragStart === NO_TOKEN) this.handlers.point(null);
    });
    this.node.addEventListener("pointerdown", (event) => {
      dragStart = itemAt(event);
      dragEnd = dragStart;
      if (dragStart !== NO_TOKEN && event.pointerType !== "touch") event.preventDefault(); // no text selection
      this.node.focus({ preventScroll: true });
    });
    this.node.addEventListener("pointerup", (event) => {
      if (dragStart !== NO_TOKEN && dragStart === dragEnd && itemAt(event) === dragStart)
        this.handlers.pick(this.items[dragStart], event.shiftKey);
      if (dragStart === NO_TOKEN) this.handlers.clear();
      dragStart = NO_TOKEN;
    });
    this.node.addEventListener("keydown", (event) => this.onKeyDown(event));
  }

  /**
   * @param {number} start
   * @param {number} end
   */
  selectSpan(start, end) {
    const [first, last] = [Math.min(start, end), Math.max(start, end)];
    this.handlers.span({ text: "", first: this.items[first].first, last: this.items[last].last });
  }

  /** @param {KeyboardEvent} event */
  onKeyDown(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -10, ArrowDown: 10 }[event.key];
    if (step) {
      this.cursor = Math.max(0, Math.min(this.items.length - 1, this.cursor + step));
      this.reveal(this.items[this.cursor].first);
      this.handlers.point(this.items[this.cursor]);
    } else if (event.key === "Enter" && this.cursor !== NO_TOKEN)
      this.handlers.pick(this.items[this.cursor], event.shiftKey);
    else if (event.key === "Escape") this.handlers.clear();
    else return;
    event.preventDefault();
  }
}

const BYTES_FONT_SCALE = 0.62; // as in style.css

/**
 * @param {Item} item
 * @param {(text: string) => number} measure
 */
function bytesWidth({ part }, measure) {
  return part ? BYTES_FONT_SCALE * measure(part[1]) + TOKEN_PADDING_PX : 0;
}

/**
 * A function that returns the width of a text in an element's font; widths are cached.
 * @param {HTMLElement} node
 */
function textMeasurer(node) {
  const context = context2d(document.createElement("canvas"));
  const style = getComputedStyle(node);
  context.font = `${style.fontSize} ${style.fontFamily}`;
  /** @type {Map<string, number>} */
  const widths = new Map();
  /** @param {string} text */
  const measure = (text) => {
    const width = widths.get(text) ?? context.measureText(text).width;
    widths.set(text, width);
    return width;
  };
  return measure;
}
