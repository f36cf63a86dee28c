// What lies over the tiles of a map: lines between cells, numbers in them, and crosshairs.

import { inkOn } from "./colour.js";

/** Where a map lies on its canvas. @typedef {{left: number, top: number, view: import("./viewport.js").Viewport}} Place */

/** Lines between the cells in view. */
export function drawGrid(context, { left, top, view }, colour) {
  const [first, last] = view.columns;
  const [upper, lower] = view.rows;
  const x = (n) => Math.round(left + (n - view.left) * view.unit) + 0.5;
  const y = (n) => Math.round(top + (n - view.top) * view.unit) + 0.5;
  context.strokeStyle = colour;
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
 * Weights written into their cells.
 * @param {(query: number, key: number) => number|null} valueAt exact ones only
 */
export function drawNumbers(context, { left, top, view }, look, font, valueAt) {
  context.font = `${view.unit >= 46 ? 12 : view.unit >= 32 ? 10.5 : 9}px ${font}`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  for (let query = view.rows[0]; query < view.rows[1]; query += 1) {
    for (let key = view.columns[0]; key < view.columns[1]; key += 1) {
      const value = valueAt(query, key);
      if (!value) continue;
      context.fillStyle = inkOn(look.colours, look.share(value));
      context.fillText(
        short(value),
        left + (key + 0.5 - view.left) * view.unit,
        top + (query + 0.5 - view.top) * view.unit,
      );
    }
  }
}

function short(value) {
  const size = Math.abs(value);
  if (size < 0.005) return "·";
  const text = value.toFixed(2).replace("-", "−");
  return size < 0.995 ? text.replace("0.", ".") : text;
}

/** The row of a query and the column of a key. @param {number} cell pixels that a cell of the level has */
export function drawCross(context, { left, top, view }, { query, key }, cell, colours, strength) {
  const x = left + (key - view.left) * view.unit;
  const y = top + (query - view.top) * view.unit;
  const thick = Math.max(1, cell);
  context.globalAlpha = strength * (cell > 6 ? 0.16 : 0.55);
  context.fillStyle = colours.query;
  context.fillRect(left, y, Math.min(view.width, (view.keys - view.left) * view.unit), thick);
  context.fillStyle = colours.key;
  context.fillRect(x, top, thick, Math.min(view.height, (view.queries - view.top) * view.unit));
  context.globalAlpha = strength;
  context.strokeStyle = colours.ink;
  context.lineWidth = strength > 0.5 ? 2 : 1.5;
  context.strokeRect(x, y, thick, thick);
  context.globalAlpha = 1;
}

/** A frame around a part of the map, never too small to be seen. */
export function drawFrame(context, { view }, part, colour) {
  const wide = (part.right - part.left) * view.unit;
  const high = (part.bottom - part.top) * view.unit;
  const x = Math.min(part.left * view.unit, view.width - 6);
  const y = Math.min(part.top * view.unit, view.height - 6);
  context.strokeStyle = colour;
  context.lineWidth = 1.5;
  context.strokeRect(x + 0.75, y + 0.75, Math.max(5, wide - 1.5), Math.max(5, high - 1.5));
}
