// An animation of points on a circle, on a sphere or in the plane.

import { curveColor } from "../../lib/color/palettes.js";
import { button, element, slider } from "../../lib/element.js";
import { formatNumber } from "../../lib/format.js";
import { effectiveTheme } from "../../state/theme.js";

const ANIMATION_S = 8;
const SIDE_PX = 380;
const TILT = 0.42; // of the sphere's axis toward the viewer, in radians
const DOT_RADIUS_PX = 6;

/**
 * A figure with a play button and a slider. Returns its node, `draw`, and `end`, which stops the animation.
 * @param {{title: string, times: number[], groups: number[]}} animation
 * @param {{data: Float32Array, shape: number[]}} points of shape (moments, points, 2 or 3)
 */
export function pointAnimationFigure({ store }, animation, points) {
  const [moments, , width] = points.shape;
  const canvas = element("canvas", {
    class: "point-animation",
    role: "img",
    "aria-label": animation.title,
    tabindex: -1,
  });
  const state = {
    moment: 0,
    frameRequest: 0,
    rotation: 0.6,
    lastTime: 0,
    radius: maxRadius(points),
    isSpherical: isOnUnitSphere(points),
  };
  const draw = () => paint(canvas, animation, points, state, effectiveTheme(store.get()));
  const format = (n) => `t = ${formatNumber(animation.times[Math.round(n)], 2)}`;
  const show = (moment) => {
    state.moment = Math.max(0, Math.min(moments - 1, moment));
    momentSlider.setValue(Math.round(state.moment));
    draw();
  };
  const pause = () => {
    cancelAnimationFrame(state.frameRequest);
    state.frameRequest = 0;
    play.textContent = "Play";
  };
  const momentSlider = slider("Time", [0, moments - 1, 1], 0, format, (n) => {
    pause();
    show(n);
  });
  const step = (now) => {
    const next = state.moment + ((now - state.lastTime) / 1000 / ANIMATION_S) * (moments - 1);
    state.lastTime = now;
    show(next);
    if (next >= moments - 1) pause();
    else state.frameRequest = requestAnimationFrame(step);
  };
  const play = button("Play", () => {
    if (state.frameRequest) return pause();
    if (state.moment >= moments - 1) state.moment = 0;
    play.textContent = "Pause";
    state.lastTime = performance.now();
    state.frameRequest = requestAnimationFrame(step);
    return undefined;
  });
  if (width === 3) rotateOnDrag(canvas, state, draw);
  const node = element(
    "figure",
    { class: "theory-panel", "data-kind": "animation" },
    element("figcaption", {}, animation.title),
    canvas,
    element("div", { class: "playback-bar" }, play, momentSlider),
  );
  return { node, draw, end: pause };
}

function rotateOnDrag(canvas, state, draw) {
  canvas.addEventListener("pointerdown", (event) => canvas.setPointerCapture(event.pointerId));
  canvas.addEventListener("pointermove", (event) => {
    if (!event.buttons) return;
    state.rotation += event.movementX / 120;
    draw();
  });
}

/** The points at a moment, interpolated linearly between the two nearest ones. */
function interpolatePoints({ data, shape: [moments, count, width] }, moment) {
  const [first, fraction] = [Math.floor(moment), moment % 1];
  const next = Math.min(first + 1, moments - 1);
  const value = (m, n, c) => data[(m * count + n) * width + c];
  return Array.from({ length: count }, (_, n) =>
    Array.from({ length: width }, (_unused, c) => value(first, n, c) * (1 - fraction) + value(next, n, c) * fraction),
  );
}

/** The orthographic projection of a rotated point: x, y and the depth toward the viewer. */
function project(point, rotation) {
  if (point.length === 2) return [point[0], point[1], 0];
  const [x, y, z] = point;
  const [cos, sin] = [Math.cos(rotation), Math.sin(rotation)];
  const [right, depth] = [x * cos - y * sin, x * sin + y * cos];
  return [right, z * Math.cos(TILT) - depth * Math.sin(TILT), -(z * Math.sin(TILT) + depth * Math.cos(TILT))];
}

/** The largest distance of a point from the center. */
function maxRadius({ data, shape: [, , width] }) {
  let radius = 0;
  for (let n = 0; n < data.length; n += width) radius = Math.max(radius, Math.hypot(...data.subarray(n, n + width)));
  return radius || 1;
}

function paint(canvas, animation, points, state, theme) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = SIDE_PX * ratio;
  canvas.height = SIDE_PX * ratio;
  const context = canvas.getContext("2d");
  const style = getComputedStyle(canvas);
  const scale = (SIDE_PX / 2 - 2 * DOT_RADIUS_PX) / state.radius;
  context.scale(ratio, ratio);
  context.translate(SIDE_PX / 2, SIDE_PX / 2);
  if (state.isSpherical) {
    context.strokeStyle = style.getPropertyValue("--strong-line");
    context.beginPath();
    context.arc(0, 0, scale, 0, 2 * Math.PI);
    context.stroke();
  }
  const current = interpolatePoints(points, state.moment);
  const dots = current.map((point, n) => ({ n, position: project(point, state.rotation) }));
  for (const { n, position } of dots.sort((a, b) => a.position[2] - b.position[2])) {
    const [x, y, depth] = position;
    context.globalAlpha = depth < 0 ? 0.45 : 0.9; // fainter on the far side of the sphere
    context.fillStyle = curveColor(animation.groups[n], theme);
    context.beginPath();
    context.arc(x * scale, -y * scale, DOT_RADIUS_PX * (1 + 0.25 * depth), 0, 2 * Math.PI);
    context.fill();
  }
  context.globalAlpha = 1;
  canvas.dataset.moment = String(Math.round(state.moment));
}

/** Whether all points are on the unit circle or sphere, which is then drawn. */
function isOnUnitSphere({ data, shape }) {
  for (let n = 0; n < data.length; n += shape[2])
    if (Math.abs(Math.hypot(...data.subarray(n, n + shape[2])) - 1) > 0.01) return false;
  return true;
}
