// An animation of points on a circle, on a sphere or in the plane.

import { curveColor } from "../../lib/color/palettes.js";
import { button, context2d, element, slider } from "../../lib/element.js";
import { formatNumber } from "../../lib/format.js";
import { effectiveTheme } from "../../state/theme.js";
import { interpolatePoints, isOnUnitSphere, maxRadius, project } from "./point-projection.js";

/** @import { AnimationPanel, Context, PackedArray, Theme } from "../../lib/types.js" */

const ANIMATION_S = 8;
const SIDE_PX = 380;
const DOT_RADIUS_PX = 6;

/**
 * @typedef {Object} AnimationState
 * @property {number} moment
 * @property {number} frameRequest 0 while the animation is paused
 * @property {number} rotation in radians
 * @property {number} lastTime of the last frame, in milliseconds
 * @property {number} radius the largest distance of a point from the center
 * @property {boolean} isSpherical
 */

/**
 * A figure with a play button and a slider. Returns its node, `draw`, and `end`, which stops the animation.
 * @param {Context} context
 * @param {AnimationPanel} animation
 * @param {PackedArray} points of shape (moments, points, 2 or 3)
 */
export function pointAnimationFigure({ store }, animation, points) {
  const [moments, , width] = points.shape;
  const canvas = element("canvas", {
    class: "point-animation",
    role: "img",
    "aria-label": animation.title,
    tabindex: -1,
  });
  /** @type {AnimationState} */
  const state = {
    moment: 0,
    frameRequest: 0,
    rotation: 0.6,
    lastTime: 0,
    radius: maxRadius(points),
    isSpherical: isOnUnitSphere(points),
  };
  const draw = () => paint(canvas, animation, points, state, effectiveTheme(store.get()));
  /** @param {number} n */
  const format = (n) => `t = ${formatNumber(animation.times[Math.round(n)], 2)}`;
  /** @param {number} moment */
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
  /** @param {number} now */
  const step = (now) => {
    const next = state.moment + ((now - state.lastTime) / 1000 / ANIMATION_S) * (moments - 1);
    state.lastTime = now;
    show(next);
    if (next >= moments - 1) pause();
    else state.frameRequest = requestAnimationFrame(step);
  };
  const play = button("Play", () => {
    if (state.frameRequest) {
      pause();
      return;
    }
    if (state.moment >= moments - 1) state.moment = 0;
    play.textContent = "Pause";
    state.lastTime = performance.now();
    state.frameRequest = requestAnimationFrame(step);
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

/**
 * @param {HTMLCanvasElement} canvas
 * @param {AnimationState} state
 * @param {() => void} draw
 */
function rotateOnDrag(canvas, state, draw) {
  canvas.addEventListener("pointerdown", (event) => canvas.setPointerCapture(event.pointerId));
  canvas.addEventListener("pointermove", (event) => {
    if (!event.buttons) return;
    state.rotation += event.movementX / 120;
    draw();
  });
}

/**
 * @param {HTMLCanvasElement} canvas
 * @param {AnimationPanel} animation
 * @param {PackedArray} points
 * @param {AnimationState} state
 * @param {Theme} theme
 */
function paint(canvas, animation, points, state, theme) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = SIDE_PX * ratio;
  canvas.height = SIDE_PX * ratio;
  const context = context2d(canvas);
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
