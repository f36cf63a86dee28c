// A map of attention weights on a canvas: the visible tiles, token labels and a crosshair.

import { drawTokenAxes, axisMargins } from "./map-axes.js";
import { ColorMapping } from "../../lib/color/color-mapping.js";
import { drawCrosshair, drawViewportFrame, drawGrid, drawNumbers } from "./map-overlays.js";
import { paintTile } from "./tile-painter.js";
import { Viewport } from "./viewport.js";

const MIN_NUMBER_CELL_PX = 23; // smaller cells show no numbers
const MIN_GRID_CELL_PX = 9; // smaller cells have no grid lines

/**
 * @typedef {Object} MapData
 * @property {string} name equal for equal weights
 * @property {(level: number, row: number, column: number) => {key: string, name: string, params: Object}} tileRequest
 * @property {number} numQueries
 * @property {number} numKeys
 * @property {number} numLevels
 * @property {number} tileSize cells per side of a tile
 * @property {string[]} rowTokens
 * @property {string[]} columnTokens
 * @property {boolean} [signed] whether the values are differences
 * @property {number} [finestLevel] the finest available level, in an exported file
 * @property {number|null} [sampledRows] sampled rows per cell, if the map is a thumbnail of a long text
 */
export class HeadMap {
  /**
   * @param {HTMLCanvasElement} canvas
   * @param {import("../../transport/tile-cache.js").TileCache} tiles
   * @param {{axes?: boolean, changed?: () => void, failed?: (error: Error) => void}} options
   */
  constructor(canvas, tiles, options = {}) {
    this.canvas = canvas;
    this.tiles = tiles;
    this.options = { axes: true, changed: () => {}, failed: () => {}, ...options };
    this.view = new Viewport();
    this.data = null;
    this.colorMapping = new ColorMapping();
    this.marks = { hoveredCell: null, selectedCell: null, frame: null };
    this.left = 0;
    this.top = 0;
    this.frameRequest = 0;
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(canvas);
  }

  /** Shows another map; the viewport stays if the map has the same size. @param {MapData} mapData */
  setData(mapData) {
    const isResized = this.data?.numQueries !== mapData.numQueries || this.data.numKeys !== mapData.numKeys;
    this.data = mapData;
    Object.assign(this.view, { queries: mapData.numQueries, keys: mapData.numKeys, levels: mapData.numLevels });
    this.colorMapping.clearMaxima();
    this.resize();
    if (isResized) this.view.fit();
    this.draw();
  }

  /** Sets pooling, scale, palette and theme. */
  setColorOptions(options) {
    this.colorMapping.options = { ...this.colorMapping.options, ...options };
    this.draw();
  }

  setMarks(marks) {
    this.marks = { ...this.marks, ...marks };
    this.draw();
  }

  dispose() {
    this.observer.disconnect();
    cancelAnimationFrame(this.frameRequest);
    this.tiles.removeViewer(this);
  }

  resize() {
    const { clientWidth, clientHeight } = this.canvas;
    if (!this.data || !clientWidth) return;
    const wasFitted = this.view.isFitted;
    this.ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(clientWidth * this.ratio);
    this.canvas.height = Math.round(clientHeight * this.ratio);
    const [left, top, right] = this.options.axes ? axisMargins(this.canvas, this.data, clientWidth < 480) : [0, 0, 0];
    Object.assign(this, { left, top });
    this.view.width = Math.max(1, clientWidth - left - right);
    this.view.height = Math.max(1, clientHeight - this.top - (this.options.axes ? 6 : 0));
    if (wasFitted) this.view.fit();
    this.view.clamp();
    this.draw();
  }

  /** The level of the visible tiles: cells of level n pool 2ⁿ × 2ⁿ weights. */
  get level() {
    return Math.max(this.view.level(this.ratio ?? 1), this.data?.finestLevel ?? 0);
  }

  /** Draws in the next animation frame; several calls draw once. */
  draw() {
    cancelAnimationFrame(this.frameRequest);
    this.frameRequest = requestAnimationFrame(() => this.drawNow());
  }

  drawNow() {
    if (!this.data || !this.canvas.clientWidth) return;
    const context = this.canvas.getContext("2d");
    const style = getComputedStyle(this.canvas);
    const color = (name) => style.getPropertyValue(`--${name}`);
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.clearRect(0, 0, this.canvas.clientWidth, this.canvas.clientHeight);
    context.save();
    context.beginPath();
    context.rect(this.left, this.top, this.view.width, this.view.height);
    context.clip();
    this.drawTiles(context, color);
    this.drawOverlays(context, color);
    context.restore();
    if (this.options.axes) {
      const marks = [this.marks.selectedCell, this.marks.hoveredCell].filter(Boolean);
      drawTokenAxes(context, this.view, this.data, {
        left: this.left,
        top: this.top,
        muted: color("muted"),
        query: color("query"),
        key: color("key"),
        marks,
      });
    }
    const { view } = this;
    this.canvas.dataset.frame = [this.left, this.top, view.left, view.top, view.pixelsPerToken, this.level].join(" ");
    this.options.changed();
  }

  drawTiles(context, color) {
    const { view } = this;
    context.fillStyle = color("surface");
    context.fillRect(
      this.left - view.left * view.pixelsPerToken,
      this.top - view.top * view.pixelsPerToken,
      view.keys * view.pixelsPerToken,
      view.queries * view.pixelsPerToken,
    );
    const visible = this.visibleTiles(this.level);
    this.requestTiles(visible);
    for (const position of visible) this.trackTileMaximum(position);
    for (const position of visible) this.drawTile(context, position);
  }

  drawOverlays(context, color) {
    const { view } = this;
    if (view.pixelsPerToken >= MIN_GRID_CELL_PX) drawGrid(context, this, color("grid"));
    if (view.pixelsPerToken >= MIN_NUMBER_CELL_PX) {
      const exactValueAt = (query, key) => {
        const cell = this.valueAt(query, key);
        return cell?.exact ? cell.value : null;
      };
      drawNumbers(context, this, this.levelColors(0), color("mono"), exactValueAt);
    }
    const { hoveredCell, selectedCell, frame } = this.marks;
    const colors = { query: color("query"), key: color("key"), ink: color("ink") };
    const cellSize = 2 ** this.level * view.pixelsPerToken;
    if (selectedCell) drawCrosshair(context, this, selectedCell, cellSize, colors, 0.9);
    if (hoveredCell) drawCrosshair(context, this, hoveredCell, cellSize, colors, 0.45);
    if (frame) drawViewportFrame(context, this, frame, colors.key);
  }

  /** The positions of the visible tiles of a level. */
  visibleTiles(level) {
    const tileSize = this.data.tileSize * 2 ** level;
    const tiles = [];
    const [top, bottom] = this.view.rows;
    const [left, right] = this.view.columns;
    for (let row = Math.floor(top / tileSize); row * tileSize < bottom; row += 1)
      for (let column = Math.floor(left / tileSize); column * tileSize < right; column += 1)
        tiles.push({ level, row, column });
    return tiles;
  }

  /** Requests missing tiles: the coarsest level first, then the visible tiles from the center outward. */
  requestTiles(visible) {
    const coarsest = this.visibleTiles(this.data.numLevels - 1);
    const fromCenter = visible.slice().sort((a, b) => this.distanceFromCenter(a) - this.distanceFromCenter(b));
    const requests = [...coarsest, ...fromCenter].map((p) => this.data.tileRequest(p.level, p.row, p.column));
    this.tiles.setViewerTiles(this, requests, (error) => {
      if (error) this.options.failed(error);
      this.draw();
    });
  }

  distanceFromCenter({ level, row, column }) {
    const tileSize = this.data.tileSize * 2 ** level;
    const { view } = this;
    return Math.hypot(
      (row + 0.5) * tileSize - view.top - view.height / view.pixelsPerToken / 2,
      (column + 0.5) * tileSize - view.left - view.width / view.pixelsPerToken / 2,
    );
  }

  cachedTile({ level, row, column }) {
    return this.tiles.get(this.data.tileRequest(level, row, column).key);
  }

  /** Includes a cached tile in the maxima of the color mapping. */
  trackTileMaximum(position) {
    const tile = this.cachedTile(position);
    if (tile) this.colorMapping.trackMaximum(position.level, tile);
  }

  /** The color mapping of a level. */
  levelColors(level) {
    const inView = this.visibleTiles(level).map((position) => ({
      name: `${position.row}.${position.column}`,
      tile: this.cachedTile(position),
    }));
    return this.colorMapping.forLevel(
      this.data,
      level,
      inView.filter(({ tile }) => tile),
    );
  }

  /** Draws a tile; if it is not cached, draws its part of the finest cached coarser tile. */
  drawTile(context, position) {
    for (
      let { level, row, column } = position, up = 0;
      level < this.data.numLevels;
      level += 1, up += 1, row >>= 1, column >>= 1
    ) {
      const tile = this.cachedTile({ level, row, column });
      if (!tile) continue;
      if (up) this.trackTileMaximum({ level, row, column });
      const { tileSize } = this.data;
      const part = tileSize / 2 ** up;
      const x = (position.column - (column << up)) * part;
      const y = (position.row - (row << up)) * part;
      const width = Math.min(part, tile.columns - x);
      const height = Math.min(part, tile.rows - y);
      if (width > 0 && height > 0)
        this.drawPart(
          context,
          tile,
          level,
          [x, y, width, height],
          [column * tileSize + x, row * tileSize + y],
        );
      return;
    }
  }

  drawPart(context, tile, level, [x, y, width, height], [column, row]) {
    const { view } = this;
    const tokensPerCell = 2 ** level;
    const edge = (n, first, offset) =>
      Math.round((offset + (n * tokensPerCell - first) * view.pixelsPerToken) * this.ratio) / this.ratio;
    const [left, right] = [edge(column, view.left, this.left), edge(column + width, view.left, this.left)];
    const [top, bottom] = [edge(row, view.top, this.top), edge(row + height, view.top, this.top)];
    context.imageSmoothingEnabled = false;
    context.drawImage(
      paintTile(tile, this.colorMapping.options.pooling, this.levelColors(level)),
      x,
      y,
      width,
      height,
      left,
      top,
      right - left,
      bottom - top,
    );
  }

  /** The value drawn at a cell and its level; null if no tile is cached. The value is exact at level 0. */
  valueAt(query, key) {
    for (let level = this.level; level < (this.data?.numLevels ?? 0); level += 1) {
      const [i, j] = [query >> level, key >> level];
      const tile = this.cachedTile({ level, row: i >> 8, column: j >> 8 });
      if (tile) {
        const values = tile[this.colorMapping.options.pooling];
        return { value: values[(i & 255) * tile.columns + (j & 255)], level, exact: level === 0 };
      }
    }
    return null;
  }

  /** The cell under a point of the canvas. */
  cellAt(x, y) {
    return this.data ? this.view.cell(x - this.left, y - this.top) : null;
  }
}
