// Color palettes for weights, computed in the perceptual space OKLab so that equal steps look equal.

/** @import { PaletteName, Ramp, Theme } from "../types.js" */

const RAMP_SIZE = 256;

/**
 * A palette maps a fraction 0 to 1 to lightness, chroma and hue; 0 is close to the background of the theme.
 * @typedef {(fraction: number) => [lightness: number, chroma: number, hue: number]} Palette
 * @type {Record<PaletteName | "difference", Record<Theme, Palette>>}
 */
const PALETTES = {
  ink: {
    light: (t) => [0.985 - 0.665 * t, 0.012 + 0.2 * Math.sin(Math.PI * t ** 0.85) * (1 - 0.35 * t) + 0.06 * t, 262],
    dark: (t) => [0.215 + 0.725 * t, 0.012 + 0.17 * Math.sin(Math.PI * t ** 0.9) + 0.02 * t, 262 - 20 * t],
  },
  "purple-green": {
    light: (t) => [0.24 + 0.68 * t, 0.1 + 0.085 * t, 315 - 210 * t],
    dark: (t) => [0.24 + 0.68 * t, 0.1 + 0.085 * t, 315 - 210 * t],
  },
  difference: {
    light: (t) => diverging(t, 0.985, 0.45),
    dark: (t) => diverging(t, 0.22, 0.82),
  },
};

/**
 * @param {number} t
 * @param {number} middle
 * @param {number} end
 * @returns {[lightness: number, chroma: number, hue: number]}
 */
function diverging(t, middle, end) {
  const distance = Math.abs(2 * t - 1);
  return [middle + (end - middle) * distance, 0.19 * distance ** 0.8, t < 0.5 ? 255 : 50];
}

/**
 * The ramp of a palette: 256 colors as red, green, blue, from the faintest to the strongest.
 * @param {PaletteName | "difference"} name
 * @param {Theme} theme
 */
export function colorRamp(name, theme) {
  const ramp = new Uint8ClampedArray(RAMP_SIZE * 3);
  for (let n = 0; n < RAMP_SIZE; n += 1) ramp.set(oklchToRgb(...PALETTES[name][theme](n / (RAMP_SIZE - 1))), n * 3);
  return ramp;
}

/**
 * The color of a ramp at a fraction, for CSS.
 * @param {Ramp} ramp
 * @param {number} fraction
 */
export function rampColor(ramp, fraction) {
  const n = rampOffset(fraction);
  return `rgb(${ramp[n]},${ramp[n + 1]},${ramp[n + 2]})`;
}

/**
 * The offset in a ramp of the color at a fraction; red, green and blue follow each other.
 * @param {number} fraction
 */
export function rampOffset(fraction) {
  return 3 * Math.round(Math.min(1, Math.max(0, fraction)) * (RAMP_SIZE - 1));
}

const GRADIENT_STOPS = 24;

/** @param {number} t */
const linear = (t) => t;

/**
 * A CSS gradient of a ramp, for a legend; `scale` maps 0 to 1 to fractions of the ramp.
 * @param {Ramp} ramp
 */
export function rampGradient(ramp, scale = linear) {
  const stops = Array.from({ length: GRADIENT_STOPS }, (_, n) => rampColor(ramp, scale(n / (GRADIENT_STOPS - 1))));
  return `linear-gradient(to right, ${stops.join(", ")})`;
}

/**
 * Black or white, whichever is more legible on the color of a ramp at a fraction.
 * @param {Ramp} ramp
 * @param {number} fraction
 */
export function contrastingTextColor(ramp, fraction) {
  const n = rampOffset(fraction);
  const luma = 0.299 * ramp[n] + 0.587 * ramp[n + 1] + 0.114 * ramp[n + 2];
  return luma > 140 ? "#14161a" : "#ffffff";
}

/** Curve colors that color-blind readers can distinguish, and that also differ in lightness. */
const CURVE_COLORS = {
  light: ["#2456c7", "#c05c12", "#06452f", "#8f3f80", "#787d87", "#1b1d22", "#3f8fbf", "#8a7a10"],
  dark: ["#8db4ff", "#ffc457", "#45cfa2", "#eaa3c8", "#7fd0f7", "#ff9460", "#b9b9b9", "#f2f2f2"],
};

/**
 * The color of the n-th curve of a chart.
 * @param {number} n
 * @param {Theme} theme
 */
export function curveColor(n, theme) {
  return CURVE_COLORS[theme][n % CURVE_COLORS[theme].length];
}

/**
 * The color of the n-th of several heads.
 * @param {number} n
 * @param {Theme} theme
 */
export function headColor(n, theme) {
  const [r, g, b] = oklchToRgb(theme === "dark" ? 0.78 : 0.52, 0.14, 262 + n * 137.5);
  return `rgb(${r},${g},${b})`;
}

/**
 * Converts OKLCH (lightness, chroma, hue in degrees) to red, green and blue, 0 to 255.
 * @param {number} lightness
 * @param {number} chroma
 * @param {number} hue
 */
function oklchToRgb(lightness, chroma, hue) {
  const a = chroma * Math.cos((hue * Math.PI) / 180);
  const b = chroma * Math.sin((hue * Math.PI) / 180);
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ].map(toSrgbByte);
}

/** @param {number} x */
function toSrgbByte(x) {
  const encoded = x <= 0.0031308 ? 12.92 * x : 1.055 * x ** (1 / 2.4) - 0.055;
  return Math.round(255 * Math.min(1, Math.max(0, encoded)));
}
