// Which part of a matrix is in view, and how large: arithmetic only, nothing is drawn here.

const LARGEST = 96; // pixels a token at most
const COMFORTABLE = 64; // and at most when everything is shown

export class Viewport {
  constructor() {
    this.queries = 1;
    this.keys = 1;
    this.levels = 1;
    this.width = 1;
    this.height = 1;
    this.left = 0; // the first key in view, with a fraction
    this.top = 0; // the first query
    this.unit = 1; // pixels a token
  }

  /** Pixels a token when everything is in view. */
  get whole() {
    return Math.min(this.width / this.keys, this.height / this.queries, COMFORTABLE);
  }

  get isWhole() {
    return this.unit <= this.whole * 1.001;
  }

  /** Keeps everything within bounds. Where the whole map leaves room beside it, a part may leave as much. */
  clamp() {
    const { whole } = this;
    this.unit = Math.min(Math.max(this.unit, whole), Math.max(LARGEST, whole));
    const [wide, high] = [Math.min(this.width, this.keys * whole), Math.min(this.height, this.queries * whole)];
    this.left = Math.min(Math.max(0, this.left), Math.max(0, this.keys - wide / this.unit));
    this.top = Math.min(Math.max(0, this.top), Math.max(0, this.queries - high / this.unit));
    return this;
  }

  fit() {
    this.unit = this.whole;
    this.left = 0;
    this.top = 0;
    return this;
  }

  /** Makes everything larger by a factor; the point at (x, y) stays. */
  zoom(factor, x, y) {
    const key = this.left + x / this.unit;
    const query = this.top + y / this.unit;
    this.unit *= factor;
    this.clamp();
    this.left = key - x / this.unit;
    this.top = query - y / this.unit;
    return this.clamp();
  }

  pan(x, y) {
    this.left -= x / this.unit;
    this.top -= y / this.unit;
    return this.clamp();
  }

  /** Puts a cell in the middle, at least so large. */
  centre(query, key, unit = this.unit) {
    this.unit = unit;
    this.clamp();
    this.left = key + 0.5 - this.width / this.unit / 2;
    this.top = query + 0.5 - this.height / this.unit / 2;
    return this.clamp();
  }

  /** Moves as little as is needed for a cell to be in view. */
  reveal(query, key) {
    const [wide, high] = [this.width / this.unit, this.height / this.unit];
    this.left = Math.min(Math.max(this.left, key + 1 - wide), key);
    this.top = Math.min(Math.max(this.top, query + 1 - high), query);
    return this.clamp();
  }

  /** The cell under a point; null outside. */
  cell(x, y) {
    const key = Math.floor(this.left + x / this.unit);
    const query = Math.floor(this.top + y / this.unit);
    const inside = x >= 0 && y >= 0 && x <= this.width && y <= this.height;
    return inside && key >= 0 && query >= 0 && key < this.keys && query < this.queries ? { query, key } : null;
  }

  /** The level whose cells are at least a pixel of the screen. */
  level(ratio) {
    return Math.max(0, Math.min(this.levels - 1, Math.ceil(Math.log2(1 / (this.unit * ratio)) - 1e-9)));
  }

  /** The queries and keys in view: [first, one past the last). */
  get rows() {
    return [Math.floor(this.top), Math.min(this.queries, Math.ceil(this.top + this.height / this.unit))];
  }

  get columns() {
    return [Math.floor(this.left), Math.min(this.keys, Math.ceil(this.left + this.width / this.unit))];
  }
}
