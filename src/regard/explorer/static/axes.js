// Tokens along the two sides of a map; numbers where tokens would not fit.

import { label } from "./format.js";

const SMALLEST = 11; // pixels that a row needs for its token to be read
const LONGEST = 16;
const FONT = 12;

/** The room that labels take: [left, top, right]. */
export function margins(canvas, subject, narrow) {
  const context = canvas.getContext("2d");
  context.font = font(canvas);
  const widest = (tokens) =>
    Math.max(0, ...sample(tokens).map((token) => context.measureText(shorten(label(token))).width));
  const most = narrow ? 84 : 128;
  const left = Math.min(most, Math.max(52, widest(subject.rowTokens) + 20));
  const top = Math.min(most, Math.max(46, widest(subject.columnTokens) * 0.78 + 28));
  return [Math.round(left), Math.round(top), Math.round(Math.min(48, 0.6 * (top - 28)))];
}

function sample(tokens) {
  return tokens.length <= 400 ? tokens : tokens.slice(0, 400);
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {import("./viewport.js").Viewport} view
 * @param {{rowTokens: string[], columnTokens: string[]}} subject
 * @param {{left: number, top: number, soft: string, query: string, key: string, marks: Array}} look
 */
export function drawAxes(context, view, subject, look) {
  context.font = font(context.canvas);
  context.textBaseline = "middle";
  const rows = look.marks.map((cell) => cell.query);
  const columns = look.marks.map((cell) => cell.key);
  along(view.rows, view.unit, rows, (n, strong) => {
    const y = look.top + (n + 0.5 - view.top) * view.unit;
    if (y < look.top - 1 || y > look.top + view.height + 1) return;
    write(
      context,
      named(subject.rowTokens, n, view.unit, strong),
      look.left - 8,
      y,
      "right",
      0,
      strong ? look.query : look.soft,
      strong,
    );
  });
  along(view.columns, view.unit, columns, (n, strong) => {
    const x = look.left + (n + 0.5 - view.left) * view.unit;
    if (x < look.left - 1 || x > look.left + view.width + 1) return;
    write(
      context,
      named(subject.columnTokens, n, view.unit, strong),
      x,
      look.top - 8,
      "left",
      -Math.PI / 3.4,
      strong ? look.key : look.soft,
      strong,
    );
  });
}

/** Every place if there is room, else round numbers; marked ones in any case, and nothing that they would cover. */
function along([first, last], unit, marked, draw) {
  const step = unit >= SMALLEST ? 1 : round((4.5 * SMALLEST) / unit);
  const strong = marked.filter((n) => n >= first && n < last);
  for (let n = Math.ceil(first / step) * step; n < last; n += step) {
    const covered = strong.some((m) => Math.abs(m - n) * unit < SMALLEST + 3);
    if (step === 1 ? !strong.includes(n) : !covered) draw(n, false);
  }
  for (const n of new Set(strong)) draw(n, true);
}

function round(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((n) => n * power).find((n) => n >= least);
}

function named(tokens, n, unit, strong) {
  return unit >= SMALLEST || strong ? shorten(label(tokens[n] ?? "")) : String(n);
}

function shorten(text) {
  const letters = [...text];
  return letters.length > LONGEST ? `${letters.slice(0, LONGEST - 1).join("")}…` : text;
}

function write(context, text, x, y, align, angle, colour, strong) {
  context.save();
  context.translate(x, y);
  context.rotate(angle);
  context.textAlign = align;
  context.fillStyle = colour;
  if (strong) context.font = `600 ${context.font}`;
  context.fillText(text, 0, 0);
  context.restore();
}

function font(canvas) {
  return `${FONT}px ${getComputedStyle(canvas).fontFamily}`;
}
