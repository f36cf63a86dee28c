// Maps the values of a map to colors, separately for each level.

import { colorScale, signedScale } from "./color-scale.js";
import { colorRamp } from "./palettes.js";

/** @import { ColorOptions, LevelColors, Pooling, Tile } from "../types.js" */

/** @type {Pooling[]} */
const POOLINGS = ["mean", "max"];
const MAX_CACHED_MAPPINGS = 16; // ranks are expensive to compute

export class ColorMapping {
  constructor() {
    /** @type {ColorOptions} */
    this.options = { pooling: "mean", scale: "linear", palette: "ink", theme: "light" };
    /** @type {Map<string, LevelColors>} */
    this.cache = new Map();
    /** @type {Map<string, number>} */
    this.maxima = new Map(); // the largest absolute value of each level so far, which has the strongest color
  }

  /** Clears the maxima, for another head. */
  clearMaxima() {
    this.maxima.clear();
  }

  /**
   * Includes a tile in the maxima.
   * @param {number} level
   * @param {Tile} tile
   */
  trackMaximum(level, tile) {
    for (const pooling of POOLINGS) {
      const name = `${level} ${pooling}`;
      this.maxima.set(name, Math.max(this.maxima.get(name) ?? 0, tile.maximum[pooling]));
    }
  }

  /** @param {number} level */
  maximum(level) {
    return this.maxima.get(`${level} ${this.options.pooling}`) ?? 0;
  }

  /**
   * The color mapping of a level: a value `x` has the color `rampColor(ramp, toFraction(x))`.
   * @param {number} level
   * @param {{name: string, signed?: boolean}} mapData
   * @param {Array<{name: string, tile: Tile}>} inView tiles whose values are ranked
   * @returns {LevelColors}
   */
  forLevel(mapData, level, inView) {
    const { pooling, scale, palette, theme } = this.options;
    const signed = Boolean(mapData.signed);
    const maximum = this.maximum(level);
    const rankedTiles = scale === "rank" && !signed ? inView.map((entry) => entry.name).join() : "";
    const name = [mapData.name, level, pooling, scale, palette, theme, maximum, rankedTiles].join(" ");
    const cached = this.cache.get(name);
    if (cached) return cached;
    const toFraction = signed
      ? signedScale(scale, maximum)
      : colorScale(scale, maximum, rankedTiles ? inView.map(({ tile }) => tile[pooling]) : []);
    const mapping = { name, ramp: colorRamp(signed ? "difference" : palette, theme), toFraction, signed, maximum };
    if (this.cache.size >= MAX_CACHED_MAPPINGS) this.cache.clear();
    this.cache.set(name, mapping);
    return mapping;
  }
}
