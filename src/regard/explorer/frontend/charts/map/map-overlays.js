// Overlays of a map: grid lines, numbers, crosshairs and the frame of the minimap.

import { contrastingTextColor } from "../../lib/color/palettes.js";
import { formatCellWeight } from "../../lib/format.js";

/**
 * @import { Cell, LevelColors } from "../../lib/types.js"
 * @import { HeadMap } from "./head-map.js"
 */

/**
 * Draws lines between the visible cells.
 * @param {CanvasRenderingContext2D} context
 * @param {HeadMap} map
 * @param {string} color
 */
export function drawGrid(context, { left, top, view }, color) {
  const [first, last] = view.columns;
  const [upper, lower] = view.rows;
  /** @param {number} n */
  const x = (n) => Math.round(left + (n - view.left) * view.pixelsPerToken) + 0.5;
  /** @param {number} n */
  const y = (n) => Math.round(top + (n - view.top) * view.pixelsPerToken) + 0.5;
  context.strokeStyle = color;
  context.lineWidth = 1;
  context.beginPath();
  for (let n = first; n <= last; n += 1) {
    context.moveTo(x(n), y(upper));
    context.lineTo(x(n), y(lower));
  }
  for (let n = upper; n <= lower; n += 1) {
    context.moveTo(x(first), y(n));
    context.lineTo(x(last), y(n));
  }
  context.stroke();
}

/**
 * Draws the weights into their cells.
 * @param {CanvasRenderingContext2D} context
 * @param {HeadMap} map
 * @param {LevelColors} colors
 * @param {string} font
 * @param {(query: number, key: number) => number|null} valueAt returns null for pooled cells
 */
export function drawNumbers(context, { left, top, view }, { ramp, toFraction }, font, valueAt) {
  context.font = `${view.pixelsPerToken >= 46 ? 12 : view.pixelsPerToken >= 32 ? 10.5 : 9}px ${font}`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  for (let query = view.rows[0]; query < view.rows[1]; query += 1) {
    for (let key = view.columns[0]; key < view.columns[1]; key += 1) {
      const value = valueAt(query, key);
      if (!value) continue;
      context.fillStyle = contrastingTextColor(ramp, toFraction(value));
      context.fillText(
        formatCellWeight(value),
        left + (key + 0.5 - view.left) * view.pixelsPerToken,
        top + (query + 0.5 - view.top) * view.pixelsPerToken,
      );
    }
  }
}

/**
 * Highlights the row of a query and the column of a key.
 * @param {CanvasRenderingContext2D} context
 * @param {HeadMap} map
 * @param {Cell} cell
 * @param {number} cellSize in pixels
 * @param {{query: string, key: string, ink: string}} colors
 * @param {number} opacity
 */
export function drawCrosshair(context, { left, top, view }, { query, key }, cellSize, colors, opacity) {
  const x = left + (key - view.left) * view.pixelsPerToken;
  const y = top + (query - view.top) * view.pixelsPerToken;
  const thickness = Math.max(1, cellSize);
  context.globalAlpha = opacity * (cellSize > 6 ? 0.16 : 0.55);
  context.fillStyle = colors.query;
  context.fillRect(left, y, Math.min(view.width, (view.keys - view.left) * view.pixelsPerToken), thickness);
  context.fillStyle = colors.key;
  context.fillRect(x, top, thickness, Math.min(view.height, (view.queries - view.top) * view.pixelsPerToken));
  context.globalAlpha = opacity;
  context.strokeStyle = colors.ink;
  context.lineWidth = opacity > 0.5 ? 2 : 1.5;
  context.strokeRect(x, y, thickness, thickness);
  context.globalAlpha = 1;
}

/**
 * Draws a frame around a region of the map, with a minimum size so that it stays visible.
 * @param {CanvasRenderingContext2D} context
 * @param {HeadMap} map
 * @param {{ left: number, right: number, top: number, bottom: number }} region
 * @param {string} color
 */
export function drawViewportFrame(context, { view }, region, color) {
  const width = (region.right - region.left) * view.pixelsPerToken;
  const height = (region.bottom - region.top) * view.pixelsPerToken;
  const x = Math.min(region.left * view.pixelsPerToken, view.width - 6);
  const y = Math.min(region.top * view.pixelsPerToken, view.height - 6);
  context.strokeStyle = color;
  context.lineWidth = 1.5;
  context.strokeRect(x + 0.75, y + 0.75, Math.max(5, width - 1.5), Math.max(5, height - 1.5));
}
