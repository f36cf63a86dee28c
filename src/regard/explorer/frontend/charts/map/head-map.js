// A map of attention weights on a canvas: the visible tiles, token labels and a crosshair.

import { ColorMapping } from "../../lib/color/color-mapping.js";
import { context2d } from "../../lib/element.js";
import { axisMargins, drawTokenAxes } from "./map-axes.js";
import { drawCrosshair, drawGrid, drawNumbers, drawViewportFrame } from "./map-overlays.js";
import { fromCenterOutward, locateCell, partOfCoarserTile, visibleTiles } from "./tile-grid.js";
import { drawTilePart } from "./tile-painter.js";
import { Viewport } from "./viewport.js";

/**
 * @import { Cell, ColorOptions, MapData, TilePosition } from "../../lib/types.js"
 * @import { TileCache } from "../../transport/tile-cache.js"
 */

const MIN_NUMBER_CELL_PX = 23; // smaller cells show no numbers
const MIN_GRID_CELL_PX = 9; // smaller cells have no grid lines

/**
 * @typedef {{left: number, right: number, top: number, bottom: number}} Region
 * @typedef {{hoveredCell: Cell | null, selectedCell: Cell | null, frame: Region | null}} MapMarks
 */

export class HeadMap {
  /**
   * @param {HTMLCanvasElement} canvas
   * @param {TileCache} tiles
   * @param {{axes?: boolean, changed?: () => void, failed?: (error: unknown) => void}} options
   */
  constructor(canvas, tiles, options = {}) {
    this.canvas = canvas;
    this.tiles = tiles;
    this.options = { axes: true, changed: () => {}, failed: () => {}, ...options };
    this.view = new Viewport();
    /** @type {MapData | null} */
    this.data = null;
    this.colorMapping = new ColorMapping();
    /** @type {MapMarks} */
    this.marks = { hoveredCell: null, selectedCell: null, frame: null };
    this.ratio = 1; // device pixels per pixel
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

  /**
   * Sets pooling, scale, palette and theme.
   * @param {Partial<ColorOptions>} options
   */
  setColorOptions(options) {
    this.colorMapping.options = { ...this.colorMapping.options, ...options };
    this.draw();
  }

  /** @param {Partial<MapMarks>} marks */
  setMarks(marks) {
    this.marks = { ...this.marks, ...marks };
    this.draw();
  }

  /** The map data; they are required to draw. */
  get mapData() {
    if (!this.data) throw new Error("setData must be called before the map is drawn.");
    return this.data;
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
    return Math.max(this.view.level(this.ratio), this.data?.finestLevel ?? 0);
  }

  /** Draws in the next animation frame; several calls draw once. */
  draw() {
    cancelAnimationFrame(this.frameRequest);
    this.frameRequest = requestAnimationFrame(() => this.drawNow());
  }

  drawNow() {
    if (!this.data || !this.canvas.clientWidth) return;
    const context = context2d(this.canvas);
    const style = getComputedStyle(this.canvas);
    /** @param {string} name */
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
      const marks = [this.marks.selectedCell, this.marks.hoveredCell].filter((cell) => cell !== null);
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

  /**
   * @param {CanvasRenderingContext2D} context
   * @param {(name: string) => string} color
   */
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

  /**
   * @param {CanvasRenderingContext2D} context
   * @param {(name: string) => string} color
   */
  drawOverlays(context, color) {
    const { view } = this;
    if (view.pixelsPerToken >= MIN_GRID_CELL_PX) drawGrid(context, this, color("grid"));
    if (view.pixelsPerToken >= MIN_NUMBER_CELL_PX) {
      /**
       * @param {number} query
       * @param {number} key
       */
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

  /**
   * The positions of the visible tiles of a level.
   * @param {number} level
   */
  visibleTiles(level) {
    return visibleTiles(this.view, this.mapData.tileSize, level);
  }

  /**
   * Requests missing tiles: the coarsest level first, then the visible tiles from the center outward.
   * @param {TilePosition[]} visible
   */
  requestTiles(visible) {
    const coarsest = this.visibleTiles(this.mapData.numLevels - 1);
    const fromCenter = fromCenterOutward(this.view, this.mapData.tileSize, visible);
    const requests = [...coarsest, ...fromCenter].map((p) => this.mapData.tileRequest(p.level, p.row, p.column));
    this.tiles.setViewerTiles(this, requests, (error) => {
      if (error) this.options.failed(error);
      this.draw();
    });
  }

  /** @param {TilePosition} position */
  cachedTile({ level, row, column }) {
    return this.tiles.get(this.mapData.tileRequest(level, row, column).key);
  }

  /**
   * Includes a cached tile in the maxima of the color mapping.
   * @param {TilePosition} position
   */
  trackTileMaximum(position) {
    const tile = this.cachedTile(position);
    if (tile) this.colorMapping.trackMaximum(position.level, tile);
  }

  /**
   * The color mapping of a level.
   * @param {number} level
   */
  levelColors(level) {
    const inView = this.visibleTiles(level).flatMap((position) => {
      const tile = this.cachedTile(position);
      return tile ? [{ name: `${position.row}.${position.column}`, tile }] : [];
    });
    return this.colorMapping.forLevel(this.mapData, level, inView);
  }

  /**
   * Draws a tile; if it is not cached, draws its part of the finest cached coarser tile.
   * @param {CanvasRenderingContext2D} context
   * @param {TilePosition} position
   */
  drawTile(context, position) {
    const { tileSize, numLevels } = this.mapData;
    for (let up = 0; position.level + up < numLevels; up += 1) {
      const part = partOfCoarserTile(position, up, tileSize);
      const tile = this.cachedTile(part.position);
      if (!tile) continue;
      if (up) this.trackTileMaximum(part.position);
      const { x, y } = part;
      const [width, height] = [Math.min(part.side, tile.columns - x), Math.min(part.side, tile.rows - y)];
      const { level, row, column } = part.position;
      if (width > 0 && height > 0)
        drawTilePart(
          context,
          this,
          tile,
          level,
          { x, y, width, height },
          { row: row * tileSize + y, column: column * tileSize + x },
        );
      return;
    }
  }

  /**
   * The value drawn at a cell and its level; null if no tile is cached. The value is exact at level 0.
   * @param {number} query
   * @param {number} key
   */
  valueAt(query, key) {
    if (!this.data) return null;
    const { numLevels, tileSize } = this.data;
    for (let level = this.level; level < numLevels; level += 1) {
      const { position, i, j } = locateCell(query, key, tileSize, level);
      const tile = this.cachedTile(position);
      if (tile) {
        const values = tile[this.colorMapping.options.pooling];
        return { value: values[i * tile.columns + j], level, exact: level === 0 };
      }
    }
    return null;
  }

  /**
   * The cell under a point of the canvas.
   * @param {number} x
   * @param {number} y
   */
  cellAt(x, y) {
    return this.data ? this.view.cell(x - this.left, y - this.top) : null;
  }
}
