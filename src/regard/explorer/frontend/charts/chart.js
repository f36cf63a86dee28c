// Line charts as SVG.

import { svgElement } from "../lib/element.js";
import { axisTicks, createAxis } from "./chart-axis.js";

/** @import { Axis } from "./chart-axis.js" */

const [TOP_MARGIN_PX, BOTTOM_MARGIN_PX] = [12, 44];
const LABEL_HEIGHT_PX = 15;
/** @type {Record<string, string>} */
const DASHES = { dashed: "6 4", dotted: "2 4" };

/**
 * A curve; the style "dotted" also marks the points. `spread` has the distances from the points to the edges of a band.
 * @typedef {{name: string, title: string, color: string, points: Array<[number, number]>, spread?: number[],
 *            style?: "line" | "dashed" | "dotted" | "points"}} Curve
 * @typedef {{x: number, y: number, text: string}} Mark
 * @typedef {{name?: string, isLog: boolean, base?: number, format: (x: number) => string}} AxisOptions
 * @typedef {{left: number, right: number, bottom: number}} Frame
 * @typedef {{curve: Curve, y: number}} CurveLabel
 */

/**
 * @param {{curves: Curve[], marks?: Mark[], label: string, size: [number, number], x: AxisOptions, y: AxisOptions,
 *          hasLabels?: boolean}} options `hasLabels`: whether the curves have labels at their right ends
 */
export function chart({ curves, marks = [], label, size, x: xOptions, y: yOptions, hasLabels = true }) {
  const [width, height] = size;
  const viewBox = `0 0 ${width} ${height}`;
  const svg = svgElement("svg", { viewBox, class: "chart", role: "img", "aria-label": label });
  const points = curves.flatMap((curve) => [...curve.points, ...bandEdges(curve).flat()]);
  if (!points.length) return svg;
  const frame = {
    left: 84,
    right: width - (hasLabels ? (width < 700 ? 152 : 170) : 12),
    bottom: height - BOTTOM_MARGIN_PX,
  };
  const x = createAxis(
    points.map((p) => p[0]),
    xOptions.isLog,
    frame.left,
    frame.right,
  );
  const y = createAxis(
    points.map((p) => p[1]),
    yOptions.isLog,
    frame.bottom,
    TOP_MARGIN_PX,
  );
  svg.append(grid(x, y, xOptions, yOptions, frame, height));
  const labels = spreadLabels(curves.map((curve) => ({ curve, y: y.at(curve.points.at(-1)?.[1] ?? y.low) })));
  for (const { curve, y: labelY } of labels)
    svg.append(drawCurve(curve, x, y, hasLabels ? [frame.right + 8, labelY + 4] : null));
  svg.append(
    ...marks
      .filter((mark) => mark.x >= x.low && mark.x <= x.high)
      .map((mark, n) => crossoverMark(mark, x, y, n, frame)),
  );
  return svg;
}

/**
 * @param {Axis} x
 * @param {Axis} y
 * @param {AxisOptions} xOptions
 * @param {AxisOptions} yOptions
 * @param {Frame} frame
 * @param {number} height
 */
function grid(x, y, xOptions, yOptions, { left, right, bottom }, height) {
  const middle = (TOP_MARGIN_PX + bottom) / 2;
  return svgElement(
    "g",
    { class: "ticks" },
    axisTicks(x, (right - left) / 72, xOptions.base).map((n) => [
      svgElement("line", { x1: x.at(n), x2: x.at(n), y1: TOP_MARGIN_PX, y2: bottom }),
      svgElement("text", { x: x.at(n), y: bottom + 20, "text-anchor": "middle" }, xOptions.format(n)),
    ]),
    axisTicks(y, (bottom - TOP_MARGIN_PX) / 42).map((n) => [
      svgElement("line", { x1: left, x2: right, y1: y.at(n), y2: y.at(n) }),
      svgElement("text", { x: left - 10, y: y.at(n) + 4, "text-anchor": "end" }, yOptions.format(n)),
    ]),
    svgElement("text", { x: (left + right) / 2, y: height - 6, "text-anchor": "middle" }, xOptions.name),
    yOptions.name
      ? svgElement(
          "text",
          { x: 14, y: middle, "text-anchor": "middle", transform: `rotate(-90 14 ${middle})` },
          yOptions.name,
        )
      : null,
  );
}

/**
 * Moves labels down where they would overlap.
 * @param {CurveLabel[]} labels
 */
function spreadLabels(labels) {
  const sorted = labels.slice().sort((a, b) => a.y - b.y);
  sorted.forEach((label, n) => {
    if (n) label.y = Math.max(label.y, sorted[n - 1].y + LABEL_HEIGHT_PX);
  });
  return sorted;
}

/**
 * The lower and the upper edge of the band of a curve; empty without a spread.
 * @param {Pick<Curve, "points" | "spread">} curve
 * @returns {Array<Array<[number, number]>>}
 */
function bandEdges({ points, spread }) {
  if (!spread) return [];
  return [-1, 1].map((sign) => points.map(([a, b], n) => [a, b + sign * (spread[n] ?? 0)]));
}

/**
 * @param {Array<Array<[number, number]>>} edges
 * @param {string} color
 * @param {Axis} x
 * @param {Axis} y
 */
function band([low, high], color, x, y) {
  const corners = [...low, ...[...high].reverse()].filter(([a, b]) => x.has(a) && y.has(b));
  const d = corners.map(([a, b], n) => `${n ? "L" : "M"}${x.at(a).toFixed(1)} ${y.at(b).toFixed(1)}`).join("");
  return svgElement("path", { class: "band", d: `${d}Z`, fill: color, "fill-opacity": 0.18, stroke: "none" });
}

/**
 * @param {Curve} curve
 * @param {Axis} x
 * @param {Axis} y
 * @param {[number, number] | null} labelPosition
 */
function drawCurve({ name, title, color, points, spread, style = "line" }, x, y, labelPosition) {
  const plottable = points.filter(([a, b]) => x.has(a) && y.has(b));
  const d = plottable.map(([a, b], n) => `${n ? "L" : "M"}${x.at(a).toFixed(1)} ${y.at(b).toFixed(1)}`).join("");
  const hasDots = style === "points" || style === "dotted" || plottable.length === 1;
  /** @param {[number, number]} point */
  const dot = ([a, b]) =>
    svgElement("circle", { cx: x.at(a), cy: y.at(b), r: 3.5, fill: color }, svgElement("title", {}, `${a}: ${b}`));
  const line = {
    d,
    fill: "none",
    stroke: color,
    "stroke-width": style === "dotted" ? 1 : 2,
    "stroke-dasharray": DASHES[style] ?? null,
  };
  return svgElement(
    "g",
    { class: "curve", "data-curve": name },
    spread ? band(bandEdges({ points, spread }), color, x, y) : null,
    style === "points" ? null : svgElement("path", line),
    hasDots ? plottable.map(dot) : null,
    labelPosition ? svgElement("text", { x: labelPosition[0], y: labelPosition[1], fill: color }, title) : null,
  );
}

/**
 * The mark of a crossover with its label; labels of neighboring marks are at different heights.
 * @param {Mark} mark
 * @param {Axis} x
 * @param {Axis} y
 * @param {number} order
 * @param {Frame} frame
 */
function crossoverMark({ x: n, y: value, text }, x, y, order, { bottom }) {
  return svgElement(
    "g",
    { class: "crossover" },
    svgElement("line", { x1: x.at(n), x2: x.at(n), y1: y.at(value), y2: bottom, "stroke-dasharray": "3 3" }),
    svgElement("circle", { cx: x.at(n), cy: y.at(value), r: 5 }),
    svgElement("text", { x: x.at(n) + 7, y: bottom - 8 - LABEL_HEIGHT_PX * (order % 4) }, text),
  );
}
