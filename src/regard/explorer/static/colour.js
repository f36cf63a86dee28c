// Colours for weights, computed from a perceptual space (OKLab), so that equal steps look equal.

const STEPS = 256;

/** Each palette: from a share 0..1 to lightness, chroma and hue; by theme, since nothing should look like the paper. */
const PALETTES = {
  ink: {
    light: (t) => [0.985 - 0.665 * t, 0.012 + 0.2 * Math.sin(Math.PI * t ** 0.85) * (1 - 0.35 * t) + 0.06 * t, 262],
    dark: (t) => [0.215 + 0.725 * t, 0.012 + 0.17 * Math.sin(Math.PI * t ** 0.9) + 0.02 * t, 262 - 20 * t],
  },
  meadow: {
    light: (t) => [0.24 + 0.68 * t, 0.1 + 0.085 * t, 315 - 210 * t],
    dark: (t) => [0.24 + 0.68 * t, 0.1 + 0.085 * t, 315 - 210 * t],
  },
  difference: {
    light: (t) => two(t, 0.985, 0.45),
    dark: (t) => two(t, 0.22, 0.82),
  },
};

function two(t, middle, end) {
  const far = Math.abs(2 * t - 1);
  return [middle + (end - middle) * far, 0.19 * far ** 0.8, t < 0.5 ? 255 : 50];
}

/**
 * The colours of a palette, from 0 to the largest: 256 times red, green, blue.
 * @param {"ink"|"meadow"|"difference"} name
 * @param {"light"|"dark"} theme
 */
export function ramp(name, theme) {
  const found = new Uint8ClampedArray(STEPS * 3);
  for (let n = 0; n < STEPS; n += 1) found.set(screen(...PALETTES[name][theme](n / (STEPS - 1))), n * 3);
  return found;
}

/** One colour of a ramp as CSS understands it. */
export function css(colours, share) {
  const n = Math.round(Math.min(1, Math.max(0, share)) * (STEPS - 1)) * 3;
  return `rgb(${colours[n]},${colours[n + 1]},${colours[n + 2]})`;
}

/** Black or white, whichever reads better on a colour of the ramp. */
export function inkOn(colours, share) {
  const n = Math.round(Math.min(1, Math.max(0, share)) * (STEPS - 1)) * 3;
  const light = 0.299 * colours[n] + 0.587 * colours[n + 1] + 0.114 * colours[n + 2];
  return light > 140 ? "#14161a" : "#ffffff";
}

/** Told apart by people who see red and green alike, and by their lightness; the dark ones for light paper. */
const CURVES = {
  light: ["#0b4a78", "#b36b00", "#00795a", "#b1548a", "#2b8cbf", "#b84600", "#6d6d6d", "#101010"],
  dark: ["#8db4ff", "#ffc457", "#45cfa2", "#eaa3c8", "#7fd0f7", "#ff9460", "#b9b9b9", "#f2f2f2"],
};

/** The colour of the n-th curve of a chart. */
export function curveColour(n, theme) {
  return CURVES[theme][n % CURVES[theme].length];
}

/** A hue for the n-th of several heads. */
export function headColour(n, theme) {
  const [r, g, b] = screen(theme === "dark" ? 0.78 : 0.52, 0.14, 262 + n * 137.5);
  return `rgb(${r},${g},${b})`;
}

/** Lightness, chroma and hue (degrees) of OKLab as red, green and blue, 0..255. */
function screen(lightness, chroma, hue) {
  const a = chroma * Math.cos((hue * Math.PI) / 180);
  const b = chroma * Math.sin((hue * Math.PI) / 180);
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ].map(gamma);
}

function gamma(x) {
  const bent = x <= 0.0031308 ? 12.92 * x : 1.055 * x ** (1 / 2.4) - 0.055;
  return Math.round(255 * Math.min(1, Math.max(0, bent)));
}
