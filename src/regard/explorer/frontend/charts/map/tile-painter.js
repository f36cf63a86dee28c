// Paints a tile as a bitmap with one pixel per cell. A weight of exactly 0 is transparent.

import { rampOffset } from "../../lib/color/palettes.js";

/**
 * The bitmap of a tile; a tile caches its last one.
 * @param {import("../../transport/tile-cache.js").Tile} tile
 * @param {"mean"|"max"} pooling
 * @param {{name: string, ramp: Uint8ClampedArray, toFraction: (w: number) => number, signed: boolean}} mapping
 */
export function paintTile(tile, pooling, { name, ramp, toFraction, signed }) {
  if (tile.bitmap?.name === name) return tile.bitmap.canvas;
  const values = tile[pooling];
  const image = new ImageData(tile.columns, tile.rows);
  const pixels = image.data;
  for (let n = 0; n < values.length; n += 1) {
    if (values[n] === 0 && !signed) continue;
    const offset = rampOffset(toFraction(values[n]));
    pixels[4 * n] = ramp[offset];
    pixels[4 * n + 1] = ramp[offset + 1];
    pixels[4 * n + 2] = ramp[offset + 2];
    pixels[4 * n + 3] = 255;
  }
  const canvas = tile.bitmap?.canvas ?? document.createElement("canvas");
  canvas.width = tile.columns;
  canvas.height = tile.rows;
  canvas.getContext("2d").putImageData(image, 0, 0);
  tile.bitmap = { name, canvas };
  return canvas;
}
