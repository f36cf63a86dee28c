// Curves on two logarithmic axes, drawn as SVG.

import { drawn } from "./element.js";

const [WIDE, HIGH] = [1120, 400];
const [LEFT, RIGHT, TOP, BOTTOM] = [84, 170, 12, 44];

/**
 * @param {{curves: Array<{name: string, title: string, colour: string, points: Array<[number, number]>, dots?: boolean}>,
 *          marks: Array<{x: number, y: number, text: string}>, tellX: (x: number) => string, tellY: (y: number) => string,
 *          label: string, nameX: string}} what
 */
export function logChart({ curves, marks, tellX, tellY, label, nameX }) {
  const all = curves.flatMap((curve) => curve.points).filter(([x, y]) => x > 0 && y > 0);
  const svg = drawn("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, class: "chart", role: "img", "aria-label": label });
  if (!all.length) return svg;
  const x = axis(
    all.map((p) => p[0]),
    LEFT,
    WIDE - RIGHT,
  );
  const y = axis(
    all.map((p) => p[1]),
    HIGH - BOTTOM,
    TOP,
  );
  svg.append(
    drawn(
      "g",
      { class: "ticks" },
      ticksAlong(x, 2, 7).map((n) => [
        drawn("line", { x1: x.at(n), x2: x.at(n), y1: TOP, y2: HIGH - BOTTOM }),
        drawn("text", { x: x.at(n), y: HIGH - BOTTOM + 20, "text-anchor": "middle" }, tellX(n)),
      ]),
      ticksAlong(y, 10, 8).map((n) => [
        drawn("line", { x1: LEFT, x2: WIDE - RIGHT, y1: y.at(n), y2: y.at(n) }),
        drawn("text", { x: LEFT - 10, y: y.at(n) + 4, "text-anchor": "end" }, tellY(n)),
      ]),
      drawn("text", { x: (LEFT + WIDE - RIGHT) / 2, y: HIGH - 6, "text-anchor": "middle" }, nameX),
    ),
  );
  const ends = spread(curves.map((curve) => ({ curve, at: y.at(curve.points[curve.points.length - 1]?.[1] ?? 1) })));
  for (const { curve, at } of ends) svg.append(oneCurve(curve, x, y, at));
  svg.append(...marks.filter((mark) => mark.x >= x.low && mark.x <= x.high).map((mark, n) => crossing(mark, x, y, n)));
  return svg;
}

function axis(values, from, to) {
  const low = Math.min(...values);
  const high = Math.max(...values, low * 1.01);
  const at = (v) => from + ((Math.log(v) - Math.log(low)) / (Math.log(high) - Math.log(low))) * (to - from);
  return { low, high, at };
}

/** Powers of a base within an axis, so many at most. */
function ticksAlong({ low, high }, base, most) {
  const first = Math.ceil(Math.log(low) / Math.log(base) - 1e-9);
  const last = Math.floor(Math.log(high) / Math.log(base) + 1e-9);
  const step = Math.max(1, Math.ceil((last - first + 1) / most));
  const found = [];
  for (let n = first; n <= last; n += step) found.push(base ** n);
  return found;
}

/** Names at the right end, moved apart where they would overlap. */
function spread(ends) {
  const sorted = ends.slice().sort((a, b) => a.at - b.at);
  sorted.forEach((each, n) => {
    if (n && each.at < sorted[n - 1].at + 15) each.at = sorted[n - 1].at + 15;
  });
  return sorted;
}

function oneCurve({ name, title, colour, points, dots, dashed }, x, y, at) {
  const good = points.filter((p) => p[0] > 0 && p[1] > 0);
  const d = good.map(([a, b], n) => `${n ? "L" : "M"}${x.at(a).toFixed(1)} ${y.at(b).toFixed(1)}`).join("");
  const group = drawn(
    "g",
    { class: "curve", "data-curve": name },
    drawn("path", {
      d,
      fill: "none",
      stroke: colour,
      "stroke-width": dots ? 1 : 2,
      "stroke-dasharray": dots ? "2 4" : dashed ? "6 4" : null,
    }),
    dots ? good.map(([a, b]) => drawn("circle", { cx: x.at(a), cy: y.at(b), r: 3.5, fill: colour })) : null,
    drawn("text", { x: WIDE - RIGHT + 8, y: at + 4, fill: colour }, title),
  );
  return group;
}

function crossing({ x: n, y: value, text }, x, y, order) {
  return drawn(
    "g",
    { class: "crossing" },
    drawn("line", { x1: x.at(n), x2: x.at(n), y1: y.at(value), y2: HIGH - BOTTOM, "stroke-dasharray": "3 3" }),
    drawn("circle", { cx: x.at(n), cy: y.at(value), r: 5 }),
    drawn("text", { x: x.at(n) + 7, y: HIGH - BOTTOM - 8 - 15 * (order % 4) }, text),
  );
}
