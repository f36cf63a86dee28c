// Points that move on a circle or a sphere, or in the plane: played, paused, and moved by hand.

import { curveColour } from "./colour.js";
import { button, element, slider } from "./element.js";
import { number } from "./format.js";
import { themeOf } from "./theme.js";

const SECONDS = 8; // that a whole motion takes
const SIDE = 380; // pixels
const TILT = 0.42; // radians from above, so that a sphere is seen as one
const DOT = 6;

/**
 * A figure that plays itself when asked to; `end` of it stops it.
 * @param {{title: string, times: number[], groups: number[]}} motion
 * @param {{data: Float32Array, shape: number[]}} points (moments, points, 2 or 3)
 */
export function motionFigure({ store }, motion, points) {
  const [moments, , width] = points.shape;
  const canvas = element("canvas", { class: "motion", role: "img", "aria-label": motion.title, tabindex: -1 });
  const state = { at: 0, playing: 0, turn: 0.6, last: 0, reach: reach(points), isRound: isRound(points) };
  const draw = () => paint(canvas, motion, points, state, themeOf(store.get()));
  const words = (n) => `t = ${number(motion.times[Math.round(n)], 2)}`;
  const show = (moment) => {
    state.at = Math.max(0, Math.min(moments - 1, moment));
    bar.put(Math.round(state.at));
    draw();
  };
  const pause = () => {
    cancelAnimationFrame(state.playing);
    state.playing = 0;
    play.textContent = "Play";
  };
  const bar = slider("Moment", [0, moments - 1, 1], 0, words, (n) => {
    pause();
    show(n);
  });
  const step = (now) => {
    const next = state.at + ((now - state.last) / 1000 / SECONDS) * (moments - 1);
    state.last = now;
    show(next);
    if (next >= moments - 1) pause();
    else state.playing = requestAnimationFrame(step);
  };
  const play = button("Play", () => {
    if (state.playing) return pause();
    if (state.at >= moments - 1) state.at = 0;
    play.textContent = "Pause";
    state.last = performance.now();
    state.playing = requestAnimationFrame(step);
    return undefined;
  });
  if (width === 3) turnByHand(canvas, state, draw);
  const node = element(
    "figure",
    { class: "theory-panel", "data-kind": "motion" },
    element("figcaption", {}, motion.title),
    canvas,
    element("div", { class: "scrub" }, play, bar),
  );
  return { node, draw, end: pause };
}

function turnByHand(canvas, state, draw) {
  canvas.addEventListener("pointerdown", (event) => canvas.setPointerCapture(event.pointerId));
  canvas.addEventListener("pointermove", (event) => {
    if (!event.buttons) return;
    state.turn += event.movementX / 120;
    draw();
  });
}

/** The points at a moment, between two that are known where it lies between them. */
function placesAt({ data, shape: [moments, count, width] }, at) {
  const [first, share] = [Math.floor(at), at % 1];
  const next = Math.min(first + 1, moments - 1);
  const value = (moment, n, c) => data[(moment * count + n) * width + c];
  return Array.from({ length: count }, (_, n) =>
    Array.from({ length: width }, (_unused, c) => value(first, n, c) * (1 - share) + value(next, n, c) * share),
  );
}

/** Where points lie on the paper, and how near they are: a sphere is turned, and seen from far away. */
function projected(place, turn) {
  if (place.length === 2) return [place[0], place[1], 0];
  const [x, y, z] = place;
  const [across, deep] = [x * Math.cos(turn) - y * Math.sin(turn), x * Math.sin(turn) + y * Math.cos(turn)];
  return [across, z * Math.cos(TILT) - deep * Math.sin(TILT), -(z * Math.sin(TILT) + deep * Math.cos(TILT))];
}

/** How far from the middle anything ever is. */
function reach({ data, shape }) {
  let most = 0;
  for (let n = 0; n < data.length; n += shape[2]) most = Math.max(most, Math.hypot(...data.subarray(n, n + shape[2])));
  return most || 1;
}

function paint(canvas, motion, points, state, theme) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = SIDE * ratio;
  canvas.height = SIDE * ratio;
  const pen = canvas.getContext("2d");
  const style = getComputedStyle(canvas);
  const size = (SIDE / 2 - 2 * DOT) / state.reach;
  pen.scale(ratio, ratio);
  pen.translate(SIDE / 2, SIDE / 2);
  if (state.isRound) {
    pen.strokeStyle = style.getPropertyValue("--strong-line");
    pen.beginPath();
    pen.arc(0, 0, size, 0, 2 * Math.PI);
    pen.stroke();
  }
  const seen = placesAt(points, state.at).map((place, n) => ({ n, place: projected(place, state.turn) }));
  for (const { n, place } of seen.sort((a, b) => a.place[2] - b.place[2])) {
    pen.globalAlpha = place[2] < 0 ? 0.45 : 0.9; // behind the sphere
    pen.fillStyle = curveColour(motion.groups[n], theme);
    pen.beginPath();
    pen.arc(place[0] * size, -place[1] * size, DOT * (1 + 0.25 * place[2]), 0, 2 * Math.PI);
    pen.fill();
  }
  pen.globalAlpha = 1;
  canvas.dataset.moment = String(Math.round(state.at));
}

/** Whether all points lie on a circle or sphere around the middle, which is then drawn. */
function isRound({ data, shape }) {
  for (let n = 0; n < data.length; n += shape[2])
    if (Math.abs(Math.hypot(...data.subarray(n, n + shape[2])) - 1) > 0.01) return false;
  return true;
}
