// A text of any length as tokens that can be pointed at. Only the lines in view are in the page.

import { element } from "./element.js";
import { visible } from "./format.js";

const AROUND = 6; // lines above and below that are kept ready
const PADDING = 4; // pixels that a token is wider than its letters
const SHORT = 60; // tokens up to which a text is written large
const GAP = 6; // pixels between tokens that have no spaces of their own
const NO_TOKEN = -1;

/**
 * @typedef {{text: string, first: number, last: number}} Item a token, or a word of tokens first..last
 */
export class TextFlow {
  /**
   * @param {{label: string, point: (item: Item|null) => void, pick: (item: Item, add: boolean) => void,
   *          span: (item: Item) => void, clear: () => void}} does a span is an item from its first to its last token
   */
  constructor(does) {
    this.does = does;
    this.items = [];
    this.lines = [];
    this.mark = () => null;
    this.cursor = NO_TOKEN;
    this.high = 34; // pixels a line
    this.gap = 0;
    this.spans = new Map();
    this.inner = element("div", { class: "flow-inner" });
    this.node = element(
      "div",
      { class: "flow", tabindex: 0, role: "listbox", "aria-label": does.label, "aria-multiselectable": "true" },
      this.inner,
    );
    this.node.addEventListener("scroll", () => this.render());
    this.watch = new ResizeObserver(() => this.layout());
    this.watch.observe(this.node);
    this.hands();
  }

  leave() {
    this.watch.disconnect();
  }

  /**
   * @param {string[]} tokens
   * @param {{words?: number[]|null, parts?: Object<number, [string, string]>}} [as] the number of its word for each token,
   * to show words; label and bytes of tokens that are parts of a character
   */
  show(tokens, { words = null, parts = {} } = {}) {
    this.node.classList.toggle("large", tokens.length <= SHORT);
    this.gap = tokens.some((text) => /\s/.test(text)) ? 0 : GAP; // tokens without spaces are whole words
    this.node.classList.toggle("apart", this.gap > 0);
    this.items = words ? joined(tokens, words) : tokens.map((text, n) => ({ text, first: n, last: n, part: parts[n] ?? null }));
    this.cursor = NO_TOKEN;
    this.layout();
  }

  /** @param {(item: Item) => {look: number, seen: number, state: string}|null} mark how each is coloured */
  colour(mark) {
    this.mark = mark;
    for (const [n, span] of this.spans) this.dress(n, span);
  }

  /** Brings a token into view. */
  reveal(token) {
    const line = this.lines.findIndex((each) => this.items[each.last]?.last >= token);
    if (line < 0) return;
    const [top, high] = [line * this.high, this.node.clientHeight];
    if (top < this.node.scrollTop || top + this.high > this.node.scrollTop + high) this.node.scrollTop = top - high / 2;
  }

  /** Breaks the text into lines by the widths of its tokens. */
  layout() {
    const width = this.node.clientWidth - 24;
    if (width <= 0) return;
    this.high = 2 * Math.round(parseFloat(getComputedStyle(this.node).fontSize));
    this.node.style.setProperty("--high", `${this.high}px`);
    const measure = ruler(this.node);
    this.lines = [];
    let line = { first: 0, last: -1, width: 0 };
    this.items.forEach((item, n) => {
      const wide = measure(visible(item.text)) + bytesWidth(item, measure) + PADDING + this.gap;
      if (line.width + wide > width && line.last >= line.first) {
        this.lines.push(line);
        line = { first: n, last: n - 1, width: 0 };
      }
      line.last = n;
      line.width += wide;
      if (item.text.includes("\n")) {
        this.lines.push(line);
        line = { first: n + 1, last: n, width: 0 };
      }
    });
    if (line.last >= line.first) this.lines.push(line);
    this.inner.style.height = `${this.lines.length * this.high}px`;
    this.spans.clear();
    this.inner.replaceChildren();
    this.render();
  }

  render() {
    const first = Math.max(0, Math.floor(this.node.scrollTop / this.high) - AROUND);
    const last = Math.min(
      this.lines.length,
      Math.ceil((this.node.scrollTop + this.node.clientHeight) / this.high) + AROUND,
    );
    for (const row of [...this.inner.children]) {
      const n = Number(row.dataset.line);
      if (n >= first && n < last) continue;
      for (const span of row.children) this.spans.delete(Number(span.dataset.item));
      row.remove();
    }
    const there = new Set([...this.inner.children].map((row) => Number(row.dataset.line)));
    for (let n = first; n < last; n += 1) if (!there.has(n)) this.inner.append(this.row(n));
  }

  row(n) {
    const row = element("div", { class: "flow-line", "data-line": n, role: "presentation" });
    row.style.top = `${n * this.high}px`;
    for (let place = this.lines[n].first; place <= this.lines[n].last; place += 1) {
      const item = this.items[place];
      const isWrapped = place === this.lines[n].first && place > 0 && !this.items[place - 1].text.includes("\n");
      const text = visible(item.text);
      const span = element(
        "span",
        { class: "token", role: "option", "data-item": place, "data-token": item.first },
        isWrapped ? text.replace(/^ (?=.)/, "") : text,
        item.part ? element("small", { class: "bytes" }, item.part[1]) : null,
      );
      if (item.part) span.title = `A part of “${item.part[0].replace(/‹.*$/, "").trim()}”, bytes ${item.part[1]}`;
      this.spans.set(place, span);
      this.dress(place, span);
      row.append(span);
    }
    return row;
  }

  dress(place, span) {
    const mark = this.mark(this.items[place]);
    const mix = (name, share) => `color-mix(in srgb, var(--${name}) ${(100 * share).toFixed(1)}%, transparent)`;
    span.style.backgroundColor = mark?.look > 0 ? mix("key", 0.06 + 0.6 * mark.look) : "";
    span.style.boxShadow = mark?.seen > 0 ? `inset 0 -4px 0 ${mix("query", 0.15 + 0.85 * mark.seen)}` : "";
    span.dataset.state = mark?.state ?? "";
    span.setAttribute("aria-selected", String(mark?.state === "locked"));
    span.classList.toggle("cursor", place === this.cursor);
  }

  hands() {
    const place = (event) => {
      const span = event.target.closest?.(".token");
      return span && this.node.contains(span) ? Number(span.dataset.item) : NO_TOKEN;
    };
    let began = NO_TOKEN;
    let reached = NO_TOKEN;
    this.node.addEventListener("pointerover", (event) => {
      const here = place(event);
      if (here === NO_TOKEN) {
        if (began === NO_TOKEN) this.does.point(null);
      } else if (began !== NO_TOKEN && event.buttons) {
        reached = here;
        if (reached !== began) this.between(began, reached);
      } else this.does.point(this.items[here]);
    });
    this.node.addEventListener("pointerleave", () => {
      if (began === NO_TOKEN) this.does.point(null);
    });
    this.node.addEventListener("pointerdown", (event) => {
      began = place(event);
      reached = began;
      if (began !== NO_TOKEN && event.pointerType !== "touch") event.preventDefault(); // no selection of letters
      this.node.focus({ preventScroll: true });
    });
    this.node.addEventListener("pointerup", (event) => {
      if (began !== NO_TOKEN && began === reached && place(event) === began)
        this.does.pick(this.items[began], event.shiftKey);
      if (began === NO_TOKEN) this.does.clear();
      began = NO_TOKEN;
    });
    this.node.addEventListener("keydown", (event) => this.key(event));
  }

  between(one, other) {
    const [first, last] = [Math.min(one, other), Math.max(one, other)];
    this.does.span({ text: "", first: this.items[first].first, last: this.items[last].last });
  }

  key(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -10, ArrowDown: 10 }[event.key];
    if (step) {
      this.cursor = Math.max(0, Math.min(this.items.length - 1, this.cursor + step));
      this.reveal(this.items[this.cursor].first);
      this.does.point(this.items[this.cursor]);
    } else if (event.key === "Enter" && this.cursor !== NO_TOKEN)
      this.does.pick(this.items[this.cursor], event.shiftKey);
    else if (event.key === "Escape") this.does.clear();
    else return;
    event.preventDefault();
  }
}

const BYTES_SIZE = 0.62; // of the font, as in the style

function bytesWidth({ part }, measure) {
  return part ? BYTES_SIZE * measure(part[1]) + PADDING : 0;
}

/** Tokens of the same word joined. */
function joined(tokens, words) {
  const items = [];
  tokens.forEach((text, n) => {
    const before = items[items.length - 1];
    if (before && words[n] === words[n - 1]) {
      before.text += text;
      before.last = n;
    } else items.push({ text, first: n, last: n });
  });
  return items;
}

/** Widths of texts in an element's font; each text is measured once. */
function ruler(node) {
  const context = document.createElement("canvas").getContext("2d");
  const style = getComputedStyle(node);
  context.font = `${style.fontSize} ${style.fontFamily}`;
  const known = new Map();
  return (text) => {
    if (!known.has(text)) known.set(text, context.measureText(text).width);
    return known.get(text);
  };
}
