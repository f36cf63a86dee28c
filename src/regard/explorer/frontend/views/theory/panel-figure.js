// The figures of an experiment: line charts and matrices.

import { chart } from "../../charts/chart.js";
import { colorRamp, curveColor, rampGradient, rampOffset } from "../../lib/color/palettes.js";
import { context2d, element, svgElement } from "../../lib/element.js";
import { formatNumber, formatTick } from "../../lib/format.js";

/** @import { ChartPanel, ImagePanel, PackedArray, Series, Theme } from "../../lib/types.js" */

/** @type {[number, number]} */
const SIZE = [380, 280];

/**
 * A panel as a figure: curves with a legend, or a matrix as an image.
 * @param {ChartPanel | ImagePanel} panel
 * @param {Record<string, PackedArray>} arrays
 * @param {Theme} theme
 */
export function panelFigure(panel, arrays, theme) {
  return element(
    "figure",
    { class: "theory-panel", "data-kind": panel.kind },
    element("figcaption", {}, panel.title),
    panel.kind === "image" ? matrixImage(panel, arrays[panel.array], theme) : curves(panel, theme),
  );
}

/**
 * @param {ChartPanel} panel
 * @param {Theme} theme
 */
function curves({ title, xlabel, ylabel, log_x, log_y, series }, theme) {
  const figure = chart({
    curves: series.map(({ label, style, color_index: color, x, y, spread }) => ({
      name: label,
      title: label,
      color: curveColor(color, theme),
      style,
      points: x.map((value, n) => [value ?? NaN, y[n] ?? NaN]), // JSON has null for NaN
      spread: spread ?? undefined,
    })),
    label: title,
    size: SIZE,
    x: { name: xlabel, isLog: log_x, format: formatTick },
    y: { name: ylabel, isLog: log_y, format: formatTick },
    hasLabels: false,
  });
  return [figure, legend(series, theme)];
}

/**
 * @param {Series[]} series
 * @param {Theme} theme
 */
function legend(series, theme) {
  const labeled = series.filter(({ label }) => label);
  return element(
    "ul",
    { class: "chart-legend" },
    labeled.map(({ label, style, color_index: color }) =>
      element("li", {}, legendMark(style, curveColor(color, theme)), label),
    ),
  );
}

/**
 * @param {string} style
 * @param {string} color
 */
function legendMark(style, color) {
  const dashes = style === "dashed" ? "5 3" : null;
  return svgElement(
    "svg",
    { viewBox: "0 0 22 10", class: "legend-mark", "aria-hidden": "true" },
    style === "points"
      ? svgElement("circle", { cx: 11, cy: 5, r: 3.5, fill: color })
      : svgElement("line", {
          x1: 0,
          x2: 22,
          y1: 5,
          y2: 5,
          stroke: color,
          "stroke-width": 2,
          "stroke-dasharray": dashes,
        }),
  );
}

/**
 * @param {ImagePanel} panel
 * @param {PackedArray} matrix
 * @param {Theme} theme
 */
function matrixImage({ title, xlabel, ylabel, signed }, { data, shape: [rows, columns] }, theme) {
  const ramp = colorRamp(signed ? "difference" : "ink", theme);
  const numbers = Array.from(data).filter(Number.isFinite);
  const [low, high] = [Math.min(...numbers), Math.max(...numbers)];
  const limit = Math.max(Math.abs(low), Math.abs(high)) || 1;
  /** @type {(x: number) => number} */
  const toFraction = signed ? (x) => 0.5 + x / limit / 2 : (x) => (x - low) / (high - low || 1);
  const canvas = element("canvas", {
    width: columns,
    height: rows,
    class: "matrix-image",
    role: "img",
    "aria-label": title,
  });
  const image = new ImageData(columns, rows);
  data.forEach((x, n) => {
    if (!Number.isFinite(x)) return;
    const offset = rampOffset(toFraction(x));
    image.data.set([ramp[offset], ramp[offset + 1], ramp[offset + 2], 255], 4 * n);
  });
  context2d(canvas).putImageData(image, 0, 0);
  const ends = signed ? [-limit, limit] : [low, high];
  const bar = element("span", { class: "color-ramp" });
  bar.style.background = rampGradient(ramp);
  return [
    canvas,
    element("p", { class: "hint" }, `rows: ${ylabel}; columns: ${xlabel}`),
    element("p", { class: "legend" }, formatNumber(ends[0], 3), bar, formatNumber(ends[1], 3)),
  ];
}
