// A text of any length as tokens that can be hovered and selected. Only visible lines are in the DOM.

import { element } from "../lib/element.js";
import { showWhitespace } from "../lib/format.js";

const OVERSCAN_LINES = 6; // rendered lines above and below the visible ones
const TOKEN_PADDING_PX = 4;
const MAX_LARGE_TOKENS = 60; // longer texts have smaller type
const TOKEN_GAP_PX = 6; // between tokens, if no token contains spaces
const NO_TOKEN = -1;

/**
 * @typedef {{text: string, first: number, last: number}} Item a token, or a word of the tokens first to last
 */
export class TokenFlow {
  /**
   * @param {{label: string, point: (item: Item|null) => void, pick: (item: Item, add: boolean) => void,
   *          span: (item: Item) => void, clear: () => void}} handlers called when the pointer is over an item, when an
   *   item is clicked, when a range of items is dragged over, and when the selection is cleared
   */
  constructor(handlers) {
    this.handlers = handlers;
    this.items = [];
    this.lines = [];
    this.mark = () => null;
    this.cursor = NO_TOKEN;
    this.lineHeight = 34; // in pixels
    this.gap = 0;
    this.spans = new Map();
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
   * @param {{words?: number[]|null, parts?: Object<number, [string, string]>}} [options] `words`: the word id of each
   *   token, to show words instead of tokens; `parts`: label and bytes of the tokens that are partial characters
   */
  show(tokens, { words = null, parts = {} } = {}) {
    this.node.classList.toggle("is-large", tokens.length <= MAX_LARGE_TOKENS);
    this.gap = tokens.some((text) => /\s/.test(text)) ? 0 : TOKEN_GAP_PX; // tokens without spaces are words
    this.node.classList.toggle("spaced-tokens", this.gap > 0);
    const single = (text, n) => ({ text, first: n, last: n, part: parts[n] ?? null });
    this.items = words ? groupByWord(tokens, words) : tokens.map(single);
    this.cursor = NO_TOKEN;
    this.layout();
  }

  /**
   * Sets the shading and the state of all items. Shades are from 0 to 1.
   * @param {(item: Item) => {keyShade: number, queryShade: number, state: string}|null} mark
   */
  setTokenMarks(mark) {
    this.mark = mark;
    for (const [n, span] of this.spans) this.applyMark(n, span);
  }

  /** Scrolls a token into view. */
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
    this.lines = [];
    let line = { first: 0, last: -1, width: 0 };
    this.items.forEach((item, n) => {
      const width = measure(showWhitespace(item.text)) + bytesWidth(item, measure) + TOKEN_PADDING_PX + this.gap;
      if (line.width + width > maxWidth && line.last >= line.first) {
        this.lines.push(line);
        line = { first: n, last: n - 1, width: 0 };
      }
      line.last = n;
      line.width += width;
      if (item.text.includes("\n")) {
        this.lines.push(line);
        line = { first: n + 1, last: n, width: 0 };
      }
    });
    if (line.last >= line.first) this.lines.push(line);
    this.inner.style.height = `${this.lines.length * this.lineHeight}px`;
    this.spans.clear();
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
    for (const row of [...this.inner.children]) {
      const n = Number(row.dataset.line);
      if (n >= first && n < last) continue;
      for (const span of row.children) this.spans.delete(Number(span.dataset.item));
      row.remove();
    }
    const rendered = new Set([...this.inner.children].map((row) => Number(row.dataset.line)));
    for (let n = first; n < last; n += 1) if (!rendered.has(n)) this.inner.append(this.row(n));
  }

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

  applyMark(index, span) {
    const mark = this.mark(this.items[index]);
    const mix = (name, fraction) => `color-mix(in srgb, var(--${name}) ${(100 * fraction).toFixed(1)}%, transparent)`;
    span.style.backgroundColor = mark?.keyShade > 0 ? mix("key", 0.06 + 0.6 * mark.keyShade) : "";
    span.style.boxShadow = mark?.queryShade > 0 ? `inset 0 -4px 0 ${mix("query", 0.15 + 0.85 * mark.queryShade)}` : "";
    span.dataset.state = mark?.state ?? "";
    span.setAttribute("aria-selected", String(mark?.state === "pinned"));
    span.classList.toggle("has-cursor", index === this.cursor);
  }

  addListeners() {
    const itemAt = (event) => {
      const span = event.target.closest?.(".token");
      return span && this.node.contains(span) ? Number(span.dataset.item) : NO_TOKEN;
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

  selectSpan(start, end) {
    const [first, last] = [Math.min(start, end), Math.max(start, end)];
    this.handlers.span({ text: "", first: this.items[first].first, last: this.items[last].last });
  }

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

function bytesWidth({ part }, measure) {
  return part ? BYTES_FONT_SCALE * measure(part[1]) + TOKEN_PADDING_PX : 0;
}

/** Joins the tokens of each word into one item. */
function groupByWord(tokens, words) {
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

/** A function that returns the width of a text in an element's font; widths are cached. */
function textMeasurer(node) {
  const context = document.createElement("canvas").getContext("2d");
  const style = getComputedStyle(node);
  context.font = `${style.fontSize} ${style.fontFamily}`;
  const widths = new Map();
  return (text) => {
    if (!widths.has(text)) widths.set(text, context.measureText(text).width);
    return widths.get(text);
  };
}
