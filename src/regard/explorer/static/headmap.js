// A map of weights on a canvas: the tiles in view, coarser ones until finer arrive, tokens at the sides, a crosshair.

import { drawAxes, margins } from "./axes.js";
import { css, inkOn, ramp } from "./colour.js";
import { painted } from "./painter.js";
import { scaleOf, signedScale } from "./scale.js";
import { Viewport } from "./viewport.js";

const TILE = 256;
const ROOM_FOR_NUMBERS = 23;
const ROOM_FOR_GRID = 9;

/**
 * @typedef {Object} Subject what a map shows
 * @property {string} name the same for the same weights
 * @property {(level: number, row: number, column: number) => {key: string, name: string, params: Object}} question
 * @property {number} queries
 * @property {number} keys
 * @property {number} levels
 * @property {string[]} rowTokens
 * @property {string[]} columnTokens
 * @property {boolean} [signed] whether the numbers are differences
 */
export class HeadMap {
  /**
   * @param {HTMLCanvasElement} canvas
   * @param {import("./tiles.js").Tiles} tiles
   * @param {{axes?: boolean, changed?: () => void, failed?: (error: Error) => void}} options
   */
  constructor(canvas, tiles, options = {}) {
    this.canvas = canvas;
    this.tiles = tiles;
    this.options = { axes: true, changed: () => {}, failed: () => {}, ...options };
    this.view = new Viewport();
    this.subject = null;
    this.look = { pool: "mean", scale: "linear", palette: "ink", theme: "light" };
    this.tops = new Map();
    this.marks = { hover: null, locked: null, frame: null };
    this.left = 0;
    this.top = 0;
    this.asked = 0;
    this.watch = new ResizeObserver(() => this.resize());
    this.watch.observe(canvas);
  }

  /** @param {Subject} subject */
  show(subject) {
    const isNew = !this.subject || this.subject.queries !== subject.queries || this.subject.keys !== subject.keys;
    this.subject = subject;
    Object.assign(this.view, { queries: subject.queries, keys: subject.keys, levels: subject.levels });
    this.tops.clear();
    this.resize();
    if (isNew) this.view.fit();
    this.draw();
  }

  paint(look) {
    this.look = { ...this.look, ...look };
    this.draw();
  }

  mark(marks) {
    this.marks = { ...this.marks, ...marks };
    this.draw();
  }

  leave() {
    this.watch.disconnect();
    cancelAnimationFrame(this.asked);
    this.tiles.leave(this);
  }

  resize() {
    const { clientWidth, clientHeight } = this.canvas;
    if (!this.subject || !clientWidth) return;
    const wasWhole = this.view.isWhole;
    this.ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(clientWidth * this.ratio);
    this.canvas.height = Math.round(clientHeight * this.ratio);
    const [left, top, right] = this.options.axes ? margins(this.canvas, this.subject, clientWidth < 480) : [0, 0, 0];
    Object.assign(this, { left, top });
    this.view.width = Math.max(1, clientWidth - left - right);
    this.view.height = Math.max(1, clientHeight - this.top - (this.options.axes ? 6 : 0));
    if (wasWhole) this.view.fit();
    this.view.clamp();
    this.draw();
  }

  get level() {
    return this.view.level(this.ratio ?? 1);
  }

  /** Draws soon, once. */
  draw() {
    cancelAnimationFrame(this.asked);
    this.asked = requestAnimationFrame(() => this.drawNow());
  }

  drawNow() {
    if (!this.subject || !this.canvas.clientWidth) return;
    const context = this.canvas.getContext("2d");
    const style = getComputedStyle(this.canvas);
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.clearRect(0, 0, this.canvas.clientWidth, this.canvas.clientHeight);
    context.save();
    context.beginPath();
    context.rect(this.left, this.top, this.view.width, this.view.height);
    context.clip();
    this.drawGround(context, style);
    const visible = this.visibleTiles(this.level);
    this.wish(visible);
    this.measure(visible);
    for (const place of visible) this.drawTile(context, place);
    if (this.view.unit >= ROOM_FOR_GRID) this.drawGrid(context, style);
    if (this.view.unit >= ROOM_FOR_NUMBERS) this.drawNumbers(context, style);
    this.drawMarks(context, style);
    context.restore();
    if (this.options.axes) {
      const colour = (name) => style.getPropertyValue(name);
      const marks = [this.marks.locked, this.marks.hover].filter(Boolean);
      drawAxes(context, this.view, this.subject, { left: this.left, top: this.top, soft: colour("--soft"), query: colour("--query"), key: colour("--key"), marks });
    }
    const { view } = this;
    this.canvas.dataset.frame = [this.left, this.top, view.left, view.top, view.unit, this.level].join(" ");
    this.options.changed();
  }

  drawGround(context, style) {
    const { view } = this;
    context.fillStyle = style.getPropertyValue("--ground");
    context.fillRect(this.left - view.left * view.unit, this.top - view.top * view.unit, view.keys * view.unit, view.queries * view.unit);
  }

  visibleTiles(level) {
    const cell = TILE * 2 ** level;
    const found = [];
    const [top, bottom] = this.view.rows;
    const [left, right] = this.view.columns;
    for (let row = Math.floor(top / cell); row * cell < bottom; row += 1) {
      for (let column = Math.floor(left / cell); column * cell < right; column += 1) found.push({ level, row, column });
    }
    return found;
  }

  /** Asks for what is missing: the whole first, then what is in view from the middle outwards. */
  wish(visible) {
    const last = this.subject.levels - 1;
    const whole = this.visibleTiles(last);
    const middle = (some) => some.slice().sort((a, b) => this.fromMiddle(a) - this.fromMiddle(b));
    const list = [...whole, ...middle(visible)].map((p) => this.subject.question(p.level, p.row, p.column));
    this.tiles.want(this, list, (error) => {
      if (error) this.options.failed(error);
      this.draw();
    });
  }

  fromMiddle({ level, row, column }) {
    const cell = TILE * 2 ** level;
    const { view } = this;
    return Math.hypot((row + 0.5) * cell - view.top - view.height / view.unit / 2, (column + 0.5) * cell - view.left - view.width / view.unit / 2);
  }

  held({ level, row, column }) {
    return this.tiles.get(this.subject.question(level, row, column).key);
  }

  /** The largest value of each level that was seen so far: what the darkest colour means. */
  measure(visible) {
    for (const place of visible) {
      const tile = this.held(place);
      const name = `${place.level} ${this.look.pool}`;
      if (tile) this.tops.set(name, Math.max(this.tops.get(name) ?? 0, tile.top[this.look.pool]));
    }
  }

  /** How values of a level become colours. */
  looks(level) {
    const { pool, scale, palette, theme } = this.look;
    const signed = Boolean(this.subject.signed);
    const top = this.tops.get(`${level} ${pool}`) ?? 0;
    const colours = this.colours(signed ? "difference" : palette, theme);
    let share = signed ? signedScale(scale, top) : null;
    let seen = "";
    if (!share) {
      const ranked = scale === "rank" ? this.visibleTiles(level).map((p) => this.held(p)).filter(Boolean) : [];
      seen = scale === "rank" ? this.visibleTiles(level).map((p) => (this.held(p) ? `${p.row}.${p.column}` : "")).join() : "";
      share = this.ranked(`${level} ${pool} ${top} ${seen}`, scale, top, ranked.map((tile) => tile[pool]));
    }
    return { colours, share, signed, name: [this.subject.name, pool, scale, palette, theme, top, seen].join(" ") };
  }

  /** Counting ranks takes a while, so the last ones are kept. */
  ranked(name, scale, top, values) {
    if (scale !== "rank") return scaleOf(scale, top);
    if (this.ranks?.name !== name) this.ranks = { name, share: scaleOf("rank", top, values) };
    return this.ranks.share;
  }

  colours(palette, theme) {
    const name = `${palette} ${theme}`;
    if (this.ramp?.name !== name) this.ramp = { name, colours: ramp(palette, theme) };
    return this.ramp.colours;
  }

  /** The tile itself, or the part of a coarser one that lies in its place. */
  drawTile(context, place) {
    for (let { level, row, column } = place, up = 0; level < this.subject.levels; level += 1, up += 1, row >>= 1, column >>= 1) {
      const tile = this.held({ level, row, column });
      if (!tile) continue;
      if (up) this.measure([{ level, row, column }]);
      const part = TILE / 2 ** up;
      const x = (place.column - (column << up)) * part;
      const y = (place.row - (row << up)) * part;
      const wide = Math.min(part, tile.columns - x);
      const high = Math.min(part, tile.rows - y);
      if (wide > 0 && high > 0) this.drawPart(context, tile, level, [x, y, wide, high], [column * TILE + x, row * TILE + y]);
      return;
    }
  }

  drawPart(context, tile, level, [x, y, wide, high], [column, row]) {
    const { view } = this;
    const cell = 2 ** level;
    const edge = (n, first, offset) => Math.round((offset + (n * cell - first) * view.unit) * this.ratio) / this.ratio;
    const [left, right] = [edge(column, view.left, this.left), edge(column + wide, view.left, this.left)];
    const [top, bottom] = [edge(row, view.top, this.top), edge(row + high, view.top, this.top)];
    context.imageSmoothingEnabled = false;
    context.drawImage(painted(tile, this.look.pool, this.looks(level)), x, y, wide, high, left, top, right - left, bottom - top);
  }

  drawGrid(context, style) {
    const { view } = this;
    context.strokeStyle = style.getPropertyValue("--grid");
    context.lineWidth = 1;
    context.beginPath();
    const [first, last] = view.columns;
    const [top, bottom] = view.rows;
    const x = (n) => Math.round(this.left + (n - view.left) * view.unit) + 0.5;
    const y = (n) => Math.round(this.top + (n - view.top) * view.unit) + 0.5;
    for (let n = first; n <= last; n += 1) context.moveTo(x(n), y(top)), context.lineTo(x(n), y(bottom));
    for (let n = top; n <= bottom; n += 1) context.moveTo(x(first), y(n)), context.lineTo(x(last), y(n));
    context.stroke();
  }

  drawNumbers(context, style) {
    const { view } = this;
    const look = this.looks(0);
    context.font = `${view.unit >= 46 ? 12 : view.unit >= 32 ? 10.5 : 9}px ${style.getPropertyValue("--mono")}`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    for (let query = view.rows[0]; query < view.rows[1]; query += 1) {
      for (let key = view.columns[0]; key < view.columns[1]; key += 1) {
        const found = this.valueAt(query, key);
        if (!found || !found.exact || found.value === 0) continue;
        context.fillStyle = inkOn(look.colours, look.share(found.value));
        context.fillText(short(found.value), this.left + (key + 0.5 - view.left) * view.unit, this.top + (query + 0.5 - view.top) * view.unit);
      }
    }
  }

  drawMarks(context, style) {
    const { hover, locked, frame } = this.marks;
    if (locked) this.cross(context, locked, style, 0.9);
    if (hover) this.cross(context, hover, style, 0.45);
    if (frame) {
      context.strokeStyle = style.getPropertyValue("--key");
      context.lineWidth = 1.5;
      const { view } = this;
      const [wide, high] = [(frame.right - frame.left) * view.unit, (frame.bottom - frame.top) * view.unit];
      const x = Math.min(frame.left * view.unit, view.width - 6);
      const y = Math.min(frame.top * view.unit, view.height - 6);
      context.strokeRect(x + 0.75, y + 0.75, Math.max(5, wide - 1.5), Math.max(5, high - 1.5));
    }
  }

  /** The row of a query and the column of a key. */
  cross(context, { query, key }, style, strength) {
    const { view } = this;
    const cell = Math.max(view.unit, 2 ** this.level * view.unit);
    const x = this.left + (key - view.left) * view.unit;
    const y = this.top + (query - view.top) * view.unit;
    const thin = Math.max(1, cell);
    context.globalAlpha = strength * (cell > 6 ? 0.16 : 0.55);
    context.fillStyle = style.getPropertyValue("--query");
    context.fillRect(this.left, y, Math.min(view.width, (view.keys - view.left) * view.unit), thin);
    context.fillStyle = style.getPropertyValue("--key");
    context.fillRect(x, this.top, thin, Math.min(view.height, (view.queries - view.top) * view.unit));
    context.globalAlpha = strength;
    context.strokeStyle = style.getPropertyValue("--ink");
    context.lineWidth = strength > 0.5 ? 2 : 1.5;
    context.strokeRect(x, y, thin, thin);
    context.globalAlpha = 1;
  }

  /** What is drawn at a cell, and of how many pairs it is the mean or the largest. */
  valueAt(query, key) {
    for (let level = this.level; level < (this.subject?.levels ?? 0); level += 1) {
      const [i, j] = [query >> level, key >> level];
      const tile = this.held({ level, row: i >> 8, column: j >> 8 });
      if (tile) return { value: tile[this.look.pool][(i & 255) * tile.columns + (j & 255)], level, exact: level === 0 };
    }
    return null;
  }

  /** The cell under a point of the canvas. */
  cellAt(x, y) {
    return this.subject ? this.view.cell(x - this.left, y - this.top) : null;
  }

  /** The colour of a value at the level in view, for legends. */
  colourOf(value) {
    const look = this.looks(this.level);
    return css(look.colours, look.share(value));
  }
}

function short(value) {
  const size = Math.abs(value);
  if (size < 0.005) return "·";
  const text = value.toFixed(2).replace("-", "−");
  return size < 0.995 ? text.replace("0.", ".") : text;
}
