// The token labels of a map; indices where tokens do not fit.

import { context2d } from "../../lib/element.js";
import { axisLabels, labelText, shortLabel } from "./axis-labels.js";

/**
 * @import { Cell, MapData } from "../../lib/types.js"
 * @import { Viewport } from "./viewport.js"
 */

const MAX_MEASURED_TOKENS = 400;
export const LABEL_ANGLE_DEGREES = -53; // of the labels of columns
const FONT_SIZE_PX = 12;

/**
 * The margins for the labels in pixels: [left, top, right].
 * @param {HTMLCanvasElement} canvas
 * @param {MapData} mapData
 * @param {boolean} isNarrow
 */
export function axisMargins(canvas, mapData, isNarrow) {
  const context = context2d(canvas);
  context.font = font(canvas);
  /** @param {string[]} tokens */
  const maxWidth = (tokens) => {
    const labels = tokens.slice(0, MAX_MEASURED_TOKENS).map(shortLabel);
    return Math.max(0, ...labels.map((label) => context.measureText(label).width));
  };
  const maxMargin = isNarrow ? 84 : 128;
  const left = Math.min(maxMargin, Math.max(52, maxWidth(mapData.rowTokens) + 20));
  const top = Math.min(maxMargin, Math.max(46, maxWidth(mapData.columnTokens) * 0.78 + 28));
  return [Math.round(left), Math.round(top), Math.round(Math.min(48, 0.6 * (top - 28)))];
}

/**
 * Draws the labels of rows and columns; those of marked cells are bold.
 * @param {CanvasRenderingContext2D} context
 * @param {Viewport} view
 * @param {MapData} mapData
 * @param {{left: number, top: number, muted: string, query: string, key: string, marks: Cell[]}} options
 */
export function drawTokenAxes(context, view, mapData, options) {
  const { left, top } = options;
  context.font = font(context.canvas);
  context.textBaseline = "middle";
  const markedRows = options.marks.map((cell) => cell.query);
  const markedColumns = options.marks.map((cell) => cell.key);
  for (const { n, isMarked } of axisLabels(view.rows, view.pixelsPerToken, markedRows)) {
    const y = top + (n + 0.5 - view.top) * view.pixelsPerToken;
    if (y < top - 1 || y > top + view.height + 1) continue;
    drawText(
      context,
      labelText(mapData.rowTokens, n, view.pixelsPerToken, isMarked),
      left - 8,
      y,
      "right",
      0,
      isMarked ? options.query : options.muted,
      isMarked,
    );
  }
  for (const { n, isMarked } of axisLabels(view.columns, view.pixelsPerToken, markedColumns)) {
    const x = left + (n + 0.5 - view.left) * view.pixelsPerToken;
    if (x < left - 1 || x > left + view.width + 1) continue;
    drawText(
      context,
      labelText(mapData.columnTokens, n, view.pixelsPerToken, isMarked),
      x,
      top - 8,
      "left",
      (LABEL_ANGLE_DEGREES * Math.PI) / 180,
      isMarked ? options.key : options.muted,
      isMarked,
    );
  }
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {string} text
 * @param {number} x
 * @param {number} y
 * @param {CanvasTextAlign} align
 * @param {number} angle
 * @param {string} color
 * @param {boolean} isBold
 */
function drawText(context, text, x, y, align, angle, color, isBold) {
  context.save();
  context.translate(x, y);
  context.rotate(angle);
  context.textAlign = align;
  context.fillStyle = color;
  if (isBold) context.font = `600 ${context.font}`;
  context.fillText(text, 0, 0);
  context.restore();
}

/** @param {HTMLCanvasElement} canvas */
function font(canvas) {
  return `${FONT_SIZE_PX}px ${getComputedStyle(canvas).fontFamily}`;
}
