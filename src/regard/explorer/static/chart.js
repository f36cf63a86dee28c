// Curves over two axes, drawn as SVG.

import { axisOf, ticksOf } from "./axis.js";
import { drawn } from "./element.js";

const [TOP, BOTTOM] = [12, 44];
const LINE = 15; // pixels between two names
const DASHES = { dashed: "6 4", dotted: "2 4" };

/**
 * @typedef {{name: string, title: string, colour: string, points: Array<[number, number]>, style?: "line"|"dashed"|"dotted"|"points"}} Curve
 *   a dotted one has its points marked, too
 */

/**
 * @param {{curves: Curve[], marks?: Array<{x: number, y: number, text: string}>, label: string, size: [number, number],
 *          x: {name: string, isLog: boolean, tell: (x: number) => string, base?: number},
 *          y: {name?: string, isLog: boolean, tell: (y: number) => string}, hasNames?: boolean}} what
 *   `hasNames`: whether the curves are named at their right ends
 */
export function chart({ curves, marks = [], label, size: [wide, high], x: across, y: up, hasNames = true }) {
  const svg = drawn("svg", { viewBox: `0 0 ${wide} ${high}`, class: "chart", role: "img", "aria-label": label });
  const points = curves.flatMap((curve) => curve.points);
  if (!points.length) return svg;
  const frame = {
    left: 84,
    right: wide - (hasNames ? (wide < 700 ? 136 : 170) : 12),
    bottom: high - BOTTOM,
  };
  const x = axisOf(
    points.map((p) => p[0]),
    across.isLog,
    frame.left,
    frame.right,
  );
  const y = axisOf(
    points.map((p) => p[1]),
    up.isLog,
    frame.bottom,
    TOP,
  );
  svg.append(grid(x, y, across, up, frame, high));
  const ends = spread(curves.map((curve) => ({ curve, at: y.at(curve.points.at(-1)?.[1] ?? y.low) })));
  for (const { curve, at } of ends) svg.append(oneCurve(curve, x, y, hasNames ? [frame.right + 8, at + 4] : null));
  svg.append(
    ...marks.filter((mark) => mark.x >= x.low && mark.x <= x.high).map((mark, n) => crossing(mark, x, y, n, frame)),
  );
  return svg;
}

function grid(x, y, across, up, { left, right, bottom }, high) {
  const middle = (TOP + bottom) / 2;
  return drawn(
    "g",
    { class: "ticks" },
    ticksOf(x, (right - left) / 72, across.base).map((n) => [
      drawn("line", { x1: x.at(n), x2: x.at(n), y1: TOP, y2: bottom }),
      drawn("text", { x: x.at(n), y: bottom + 20, "text-anchor": "middle" }, across.tell(n)),
    ]),
    ticksOf(y, (bottom - TOP) / 42).map((n) => [
      drawn("line", { x1: left, x2: right, y1: y.at(n), y2: y.at(n) }),
      drawn("text", { x: left - 10, y: y.at(n) + 4, "text-anchor": "end" }, up.tell(n)),
    ]),
    drawn("text", { x: (left + right) / 2, y: high - 6, "text-anchor": "middle" }, across.name),
    up.name
      ? drawn("text", { x: 14, y: middle, "text-anchor": "middle", transform: `rotate(-90 14 ${middle})` }, up.name)
      : null,
  );
}

/** Names at the right end, moved apart where they would overlap. */
function spread(ends) {
  const sorted = ends.slice().sort((a, b) => a.at - b.at);
  sorted.forEach((each, n) => {
    if (n && each.at < sorted[n - 1].at + LINE) each.at = sorted[n - 1].at + LINE;
  });
  return sorted;
}

function oneCurve({ name, title, colour, points, style = "line" }, x, y, nameAt) {
  const good = points.filter(([a, b]) => x.has(a) && y.has(b));
  const d = good.map(([a, b], n) => `${n ? "L" : "M"}${x.at(a).toFixed(1)} ${y.at(b).toFixed(1)}`).join("");
  const hasDots = style === "points" || style === "dotted" || good.length === 1;
  const dot = ([a, b]) =>
    drawn("circle", { cx: x.at(a), cy: y.at(b), r: 3.5, fill: colour }, drawn("title", {}, `${a}: ${b}`));
  const line = {
    d,
    fill: "none",
    stroke: colour,
    "stroke-width": style === "dotted" ? 1 : 2,
    "stroke-dasharray": DASHES[style] ?? null,
  };
  return drawn(
    "g",
    { class: "curve", "data-curve": name },
    style === "points" ? null : drawn("path", line),
    hasDots ? good.map(dot) : null,
    nameAt ? drawn("text", { x: nameAt[0], y: nameAt[1], fill: colour }, title) : null,
  );
}

function crossing({ x: n, y: value, text }, x, y, order, { bottom }) {
  return drawn(
    "g",
    { class: "crossing" },
    drawn("line", { x1: x.at(n), x2: x.at(n), y1: y.at(value), y2: bottom, "stroke-dasharray": "3 3" }),
    drawn("circle", { cx: x.at(n), cy: y.at(value), r: 5 }),
    drawn("text", { x: x.at(n) + 7, y: bottom - 8 - LINE * (order % 4) }, text),
  );
}
