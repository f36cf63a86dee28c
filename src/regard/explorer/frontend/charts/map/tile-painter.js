// Paints a tile as a bitmap with one pixel per cell. A weight of exactly 0 is transparent.

import { rampOffset } from "../../lib/color/palettes.js";
import { context2d } from "../../lib/element.js";

/**
 * @import { LevelColors, Pooling, Tile } from "../../lib/types.js"
 * @import { HeadMap } from "./head-map.js"
 */

/**
 * The bitmap of a tile; a tile caches its last one.
 * @param {Tile} tile
 * @param {Pooling} pooling
 * @param {LevelColors} mapping
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
  context2d(canvas).putImageData(image, 0, 0);
  tile.bitmap = { name, canvas };
  return canvas;
}

/**
 * Draws a part of a tile where its cells are on the canvas, with sharp edges on device pixels.
 * @param {CanvasRenderingContext2D} context
 * @param {HeadMap} map
 * @param {Tile} tile
 * @param {number} level
 * @param {{x: number, y: number, width: number, height: number}} part cells of the tile
 * @param {{row: number, column: number}} corner of the part, in cells of the level
 */
export function drawTilePart(context, map, tile, level, { x, y, width, height }, { row, column }) {
  const { view, ratio } = map;
  const tokensPerCell = 2 ** level;
  /**
   * @param {number} n
   * @param {number} first the first visible token
   * @param {number} offset of the plot, in pixels
   */
  const edge = (n, first, offset) =>
    Math.round((offset + (n * tokensPerCell - first) * view.pixelsPerToken) * ratio) / ratio;
  const [left, right] = [edge(column, view.left, map.left), edge(column + width, view.left, map.left)];
  const [top, bottom] = [edge(row, view.top, map.top), edge(row + height, view.top, map.top)];
  const bitmap = paintTile(tile, map.colorMapping.options.pooling, map.levelColors(level));
  context.imageSmoothingEnabled = false;
  context.drawImage(bitmap, x, y, width, height, left, top, right - left, bottom - top);
}
