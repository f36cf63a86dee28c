// The charts of an experiment, from the data that it gives.

import { chart } from "./chart.js";
import { css, curveColour, ramp } from "./colour.js";
import { drawn, element } from "./element.js";
import { number } from "./format.js";

const SIZE = [380, 280];
const STYLES = { line: "line", dashed: "dashed", points: "points" };

/** A panel as a figure: curves with a list of what they are, or a matrix as colours. */
export function panelFigure(panel, arrays, theme) {
  return element(
    "figure",
    { class: "theory-panel", "data-kind": panel.kind },
    element("figcaption", {}, panel.title),
    panel.kind === "image" ? matrixImage(panel, arrays[panel.array], theme) : curves(panel, theme),
  );
}

function curves({ title, across, up, log_x, log_y, series }, theme) {
  const drawing = chart({
    curves: series.map(({ label, style, colour, x, y }) => ({
      name: label,
      title: label,
      colour: curveColour(colour, theme),
      style: STYLES[style],
      points: x.map((each, n) => [each ?? NaN, y[n] ?? NaN]), // what is no number comes as null
    })),
    label: title,
    size: SIZE,
    x: { name: across, isLog: log_x, tell: brief },
    y: { name: up, isLog: log_y, tell: brief },
    hasNames: false,
  });
  return [drawing, legend(series, theme)];
}

function legend(series, theme) {
  const named = series.filter(({ label }) => label);
  return element(
    "ul",
    { class: "chart-legend" },
    named.map(({ label, style, colour }) => element("li", {}, sign(style, curveColour(colour, theme)), label)),
  );
}

function sign(style, colour) {
  const dashes = style === "dashed" ? "5 3" : null;
  return drawn(
    "svg",
    { viewBox: "0 0 22 10", class: "sign", "aria-hidden": "true" },
    style === "points"
      ? drawn("circle", { cx: 11, cy: 5, r: 3.5, fill: colour })
      : drawn("line", { x1: 0, x2: 22, y1: 5, y2: 5, stroke: colour, "stroke-width": 2, "stroke-dasharray": dashes }),
  );
}

/** A number at an axis: very large and small ones by their power of ten, others as short as they can be. */
function brief(x) {
  if (x !== 0 && (Math.abs(x) >= 1e6 || Math.abs(x) < 1e-3)) return number(x, 2).replace(/^(−?)1\.0·/, "$1");
  return String(Number(x.toPrecision(4))).replace("-", "−");
}

function matrixImage({ title, across, up, signed }, { data, shape: [rows, columns] }, theme) {
  const colours = ramp(signed ? "difference" : "ink", theme);
  const numbers = Array.from(data).filter(Number.isFinite);
  const [low, high] = [Math.min(...numbers), Math.max(...numbers)];
  const size = Math.max(Math.abs(low), Math.abs(high)) || 1;
  const share = signed ? (x) => 0.5 + x / size / 2 : (x) => (x - low) / (high - low || 1);
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
    const from = 3 * Math.round(255 * Math.min(1, Math.max(0, share(x))));
    image.data.set([colours[from], colours[from + 1], colours[from + 2], 255], 4 * n);
  });
  canvas.getContext("2d").putImageData(image, 0, 0);
  const ends = signed ? [-size, size] : [low, high];
  const bar = element("span", { class: "ramp" });
  bar.style.background = `linear-gradient(to right, ${[0, 0.25, 0.5, 0.75, 1].map((t) => css(colours, t)).join(", ")})`;
  return [
    canvas,
    element("p", { class: "hint" }, `down: ${up}; across: ${across}`),
    element("p", { class: "legend" }, number(ends[0], 3), bar, number(ends[1], 3)),
  ];
}
