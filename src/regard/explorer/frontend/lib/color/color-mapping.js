// Maps the values of a map to colors, separately for each level.

import { colorRamp } from "./palettes.js";
import { colorScale, signedScale } from "./color-scale.js";

const MAX_CACHED_MAPPINGS = 16; // ranks are expensive to compute

export class ColorMapping {
  constructor() {
    this.options = { pooling: "mean", scale: "linear", palette: "ink", theme: "light" };
    this.cache = new Map();
    this.maxima = new Map(); // the largest absolute value of each level so far, which has the strongest color
  }

  /** Clears the maxima, for another head. */
  clearMaxima() {
    this.maxima.clear();
  }

  /** Includes a tile in the maxima. */
  trackMaximum(level, tile) {
    for (const pooling of ["mean", "max"]) {
      const name = `${level} ${pooling}`;
      this.maxima.set(name, Math.max(this.maxima.get(name) ?? 0, tile.maximum[pooling]));
    }
  }

  maximum(level) {
    return this.maxima.get(`${level} ${this.options.pooling}`) ?? 0;
  }

  /**
   * The color mapping of a level: a value `x` has the color `rampColor(ramp, toFraction(x))`.
   * @param {{name: string, signed?: boolean}} mapData
   * @param {Array<{name: string, tile: import("../../transport/tile-cache.js").Tile}>} inView tiles whose values are ranked
   * @returns {{name: string, ramp: Uint8ClampedArray, toFraction: (x: number) => number, signed: boolean,
   *            maximum: number}}
   */
  forLevel(mapData, level, inView) {
    const { pooling, scale, palette, theme } = this.options;
    const signed = Boolean(mapData.signed);
    const maximum = this.maximum(level);
    const rankedTiles = scale === "rank" && !signed ? inView.map((entry) => entry.name).join() : "";
    const name = [mapData.name, level, pooling, scale, palette, theme, maximum, rankedTiles].join(" ");
    if (this.cache.has(name)) return this.cache.get(name);
    const toFraction = signed
      ? signedScale(scale, maximum)
      : colorScale(scale, maximum, rankedTiles ? inView.map(({ tile }) => tile[pooling]) : []);
    const mapping = { name, ramp: colorRamp(signed ? "difference" : palette, theme), toFraction, signed, maximum };
    if (this.cache.size >= MAX_CACHED_MAPPINGS) this.cache.clear();
    this.cache.set(name, mapping);
    return mapping;
  }
}
