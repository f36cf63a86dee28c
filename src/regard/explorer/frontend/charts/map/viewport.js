// The viewport of a map: the visible part of the matrix and its zoom. Pure arithmetic, without drawing.

/** @import { Range } from "../../lib/types.js" */

const MAX_TOKEN_PX = 96; // at the largest zoom
const MAX_FITTED_TOKEN_PX = 64; // when the whole map is visible

export class Viewport {
  constructor() {
    this.queries = 1;
    this.keys = 1;
    this.levels = 1;
    this.width = 1;
    this.height = 1;
    this.left = 0; // the first visible key, with a fraction
    this.top = 0; // the first visible query, with a fraction
    this.pixelsPerToken = 1;
  }

  /** Pixels per token when the whole map is visible. */
  get fittedPixelsPerToken() {
    return Math.min(this.width / this.keys, this.height / this.queries, MAX_FITTED_TOKEN_PX);
  }

  /** Whether the whole map is visible. */
  get isFitted() {
    return this.pixelsPerToken <= this.fittedPixelsPerToken * 1.001;
  }

  /** Clamps zoom and position to the map. A zoomed map may leave as much empty space as the fitted one. */
  clamp() {
    const { fittedPixelsPerToken: fitted } = this;
    this.pixelsPerToken = Math.min(Math.max(this.pixelsPerToken, fitted), Math.max(MAX_TOKEN_PX, fitted));
    const [width, height] = [Math.min(this.width, this.keys * fitted), Math.min(this.height, this.queries * fitted)];
    this.left = Math.min(Math.max(0, this.left), Math.max(0, this.keys - width / this.pixelsPerToken));
    this.top = Math.min(Math.max(0, this.top), Math.max(0, this.queries - height / this.pixelsPerToken));
    return this;
  }

  /** Shows the whole map. */
  fit() {
    this.pixelsPerToken = this.fittedPixelsPerToken;
    this.left = 0;
    this.top = 0;
    return this;
  }

  /**
   * Zooms by a factor around the point (x, y).
   * @param {number} factor
   * @param {number} x
   * @param {number} y
   */
  zoom(factor, x, y) {
    const key = this.left + x / this.pixelsPerToken;
    const query = this.top + y / this.pixelsPerToken;
    this.pixelsPerToken *= factor;
    this.clamp();
    this.left = key - x / this.pixelsPerToken;
    this.top = query - y / this.pixelsPerToken;
    return this.clamp();
  }

  /**
   * @param {number} x
   * @param {number} y
   */
  pan(x, y) {
    this.left -= x / this.pixelsPerToken;
    this.top -= y / this.pixelsPerToken;
    return this.clamp();
  }

  /**
   * Centers a cell, with another zoom if `pixelsPerToken` is given.
   * @param {number} query
   * @param {number} key
   */
  centerOn(query, key, pixelsPerToken = this.pixelsPerToken) {
    this.pixelsPerToken = pixelsPerToken;
    this.clamp();
    this.left = key + 0.5 - this.width / this.pixelsPerToken / 2;
    this.top = query + 0.5 - this.height / this.pixelsPerToken / 2;
    return this.clamp();
  }

  /**
   * Scrolls a cell into view by the smallest distance.
   * @param {number} query
   * @param {number} key
   */
  reveal(query, key) {
    const [numKeys, numQueries] = [this.width / this.pixelsPerToken, this.height / this.pixelsPerToken];
    this.left = Math.min(Math.max(this.left, key + 1 - numKeys), key);
    this.top = Math.min(Math.max(this.top, query + 1 - numQueries), query);
    return this.clamp();
  }

  /**
   * The cell at the point (x, y); null outside the map.
   * @param {number} x
   * @param {number} y
   */
  cell(x, y) {
    const key = Math.floor(this.left + x / this.pixelsPerToken);
    const query = Math.floor(this.top + y / this.pixelsPerToken);
    const inside = x >= 0 && y >= 0 && x <= this.width && y <= this.height;
    return inside && key >= 0 && query >= 0 && key < this.keys && query < this.queries ? { query, key } : null;
  }

  /**
   * The finest level whose cells are at least one device pixel.
   * @param {number} devicePixelRatio
   */
  level(devicePixelRatio) {
    const level = Math.ceil(Math.log2(1 / (this.pixelsPerToken * devicePixelRatio)) - 1e-9);
    return Math.max(0, Math.min(this.levels - 1, level));
  }

  /**
   * The range of visible queries.
   * @returns {Range}
   */
  get rows() {
    return [Math.floor(this.top), Math.min(this.queries, Math.ceil(this.top + this.height / this.pixelsPerToken))];
  }

  /**
   * The range of visible keys.
   * @returns {Range}
   */
  get columns() {
    return [Math.floor(this.left), Math.min(this.keys, Math.ceil(this.left + this.width / this.pixelsPerToken))];
  }
}
