// The color wheel: labels of cans in their directions, and the query as an arrow that can be dragged.

import { svgElement } from "../../../../src/regard/explorer/frontend/lib/element.js";
import { cssColor, polarCoordinates, polarVector } from "./color-wheel.js";

/** @import { PaintData } from "./types.js" */

const RADIUS = 100; // of an arrow of the maximum length
const LABEL_RADIUS = 128;
const WIDTH = 350; // of the picture, with the names of the cans
const HEIGHT = 300;

/**
 * The wheel; `draw(angle, length)` of the element draws the query. The sliders next to it serve the keyboard.
 * @param {PaintData} paint
 * @param {number} maxLength
 * @param {(query: {angle: number, length: number}) => void} onDrag
 */
export function wheel({ cans, angles, v }, maxLength, onDrag) {
  const arrow = svgElement("line", { class: "query-arrow", x1: 0, y1: 0 });
  const handle = svgElement("circle", { class: "query-handle", r: 9 });
  const labels = cans.map((name, n) => {
    const [x, y] = polarVector(angles[n], LABEL_RADIUS);
    return [
      svgElement("circle", { cx: x, cy: -y, r: 11, fill: cssColor(v[n]) }),
      svgElement("text", { class: "can-name", x, y: y > 1 ? -y - 18 : -y + 27 }, name),
    ];
  });
  const node = svgElement(
    "svg",
    { class: "wheel", viewBox: `${-WIDTH / 2} ${-HEIGHT / 2} ${WIDTH} ${HEIGHT}`, "aria-hidden": "true" },
    svgElement("circle", { class: "wheel-area", r: RADIUS }),
    labels,
    arrow,
    handle,
  );
  /** @param {PointerEvent} event */
  const drag = (event) => {
    const box = node.getBoundingClientRect();
    const unit = (WIDTH / box.width) * (maxLength / RADIUS);
    const [x, y] = [event.clientX - box.left - box.width / 2, event.clientY - box.top - box.height / 2];
    onDrag(polarCoordinates(x * unit, -y * unit, maxLength));
  };
  node.addEventListener("pointerdown", (event) => {
    node.setPointerCapture(event.pointerId);
    drag(event);
  });
  node.addEventListener("pointermove", (event) => {
    if (node.hasPointerCapture(event.pointerId)) drag(event);
  });
  /**
   * @param {number} angle
   * @param {number} length
   */
  const draw = (angle, length) => {
    const [x, y] = polarVector(angle, (length / maxLength) * RADIUS);
    for (const [name, value] of Object.entries({ x2: x, y2: -y })) arrow.setAttribute(name, String(value));
    for (const [name, value] of Object.entries({ cx: x, cy: -y })) handle.setAttribute(name, String(value));
  };
  return Object.assign(node, { draw });
}
