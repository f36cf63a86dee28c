// A map of weights on a canvas: the tiles in view, coarser ones until finer arrive, tokens at the sides, a crosshair.

import { drawAxes, margins } from "./axes.js";
import { MapLooks } from "./maplooks.js";
import { drawCross, drawFrame, drawGrid, drawNumbers } from "./mapmarks.js";
import { painted } from "./painter.js";
import { Viewport } from "./viewport.js";

const TILE = 256;
const ROOM_FOR_NUMBERS = 23; // pixels a token
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
 * @property {number} [finest] the finest level that a file holds
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
    this.looks = new MapLooks();
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
    this.looks.forget();
    this.resize();
    if (isNew) this.view.fit();
    this.draw();
  }

  /** Chooses pooling, scale, palette and theme. */
  paint(choice) {
    this.looks.choice = { ...this.looks.choice, ...choice };
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
    return Math.max(this.view.level(this.ratio ?? 1), this.subject?.finest ?? 0);
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
    const colour = (name) => style.getPropertyValue(`--${name}`);
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.clearRect(0, 0, this.canvas.clientWidth, this.canvas.clientHeight);
    context.save();
    context.beginPath();
    context.rect(this.left, this.top, this.view.width, this.view.height);
    context.clip();
    this.drawTiles(context, colour);
    this.drawOver(context, colour);
    context.restore();
    if (this.options.axes) {
      const marks = [this.marks.locked, this.marks.hover].filter(Boolean);
      drawAxes(context, this.view, this.subject, {
        left: this.left,
        top: this.top,
        soft: colour("soft"),
        query: colour("query"),
        key: colour("key"),
        marks,
      });
    }
    const { view } = this;
    this.canvas.dataset.frame = [this.left, this.top, view.left, view.top, view.unit, this.level].join(" ");
    this.options.changed();
  }

  drawTiles(context, colour) {
    const { view } = this;
    context.fillStyle = colour("ground");
    context.fillRect(
      this.left - view.left * view.unit,
      this.top - view.top * view.unit,
      view.keys * view.unit,
      view.queries * view.unit,
    );
    const visible = this.visibleTiles(this.level);
    this.wish(visible);
    for (const place of visible) this.seen(place);
    for (const place of visible) this.drawTile(context, place);
  }

  drawOver(context, colour) {
    const { view } = this;
    if (view.unit >= ROOM_FOR_GRID) drawGrid(context, this, colour("grid"));
    if (view.unit >= ROOM_FOR_NUMBERS) {
      const exact = (query, key) => {
        const found = this.valueAt(query, key);
        return found?.exact ? found.value : null;
      };
      drawNumbers(context, this, this.lookOf(0), colour("mono"), exact);
    }
    const { hover, locked, frame } = this.marks;
    const colours = { query: colour("query"), key: colour("key"), ink: colour("ink") };
    const cell = 2 ** this.level * view.unit;
    if (locked) drawCross(context, this, locked, cell, colours, 0.9);
    if (hover) drawCross(context, this, hover, cell, colours, 0.45);
    if (frame) drawFrame(context, this, frame, colours.key);
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
    return Math.hypot(
      (row + 0.5) * cell - view.top - view.height / view.unit / 2,
      (column + 0.5) * cell - view.left - view.width / view.unit / 2,
    );
  }

  held({ level, row, column }) {
    return this.tiles.get(this.subject.question(level, row, column).key);
  }

  /** Takes notice of a tile that is here. */
  seen(place) {
    const tile = this.held(place);
    if (tile) this.looks.see(place.level, tile);
  }

  /** How values of a level become colours. */
  lookOf(level) {
    const inView = this.visibleTiles(level).map((place) => ({
      name: `${place.row}.${place.column}`,
      tile: this.held(place),
    }));
    return this.looks.of(
      this.subject,
      level,
      inView.filter((each) => each.tile),
    );
  }

  /** The tile itself, or the part of a coarser one that lies in its place. */
  drawTile(context, place) {
    for (
      let { level, row, column } = place, up = 0;
      level < this.subject.levels;
      level += 1, up += 1, row >>= 1, column >>= 1
    ) {
      const tile = this.held({ level, row, column });
      if (!tile) continue;
      if (up) this.seen({ level, row, column });
      const part = TILE / 2 ** up;
      const x = (place.column - (column << up)) * part;
      const y = (place.row - (row << up)) * part;
      const wide = Math.min(part, tile.columns - x);
      const high = Math.min(part, tile.rows - y);
      if (wide > 0 && high > 0)
        this.drawPart(context, tile, level, [x, y, wide, high], [column * TILE + x, row * TILE + y]);
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
    context.drawImage(
      painted(tile, this.looks.choice.pool, this.lookOf(level)),
      x,
      y,
      wide,
      high,
      left,
      top,
      right - left,
      bottom - top,
    );
  }

  /** What is drawn at a cell, and of how many pairs it is the mean or the largest. */
  valueAt(query, key) {
    for (let level = this.level; level < (this.subject?.levels ?? 0); level += 1) {
      const [i, j] = [query >> level, key >> level];
      const tile = this.held({ level, row: i >> 8, column: j >> 8 });
      if (tile)
        return { value: tile[this.looks.choice.pool][(i & 255) * tile.columns + (j & 255)], level, exact: level === 0 };
    }
    return null;
  }

  /** The cell under a point of the canvas. */
  cellAt(x, y) {
    return this.subject ? this.view.cell(x - this.left, y - this.top) : null;
  }
}
