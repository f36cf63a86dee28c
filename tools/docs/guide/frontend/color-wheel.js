// Directions on the wheel of the paint exercise, and colors for CSS.

/**
 * The vector with an angle in degrees, counterclockwise from the right, and a length.
 * @param {number} angle
 * @param {number} length
 */
export function polarVector(angle, length) {
  const radians = (angle * Math.PI) / 180;
  return [length * Math.cos(radians), length * Math.sin(radians)];
}

/**
 * The angle of a vector in whole degrees from 0 to 359, and its length in steps of 0.1 up to a maximum.
 * @param {number} x
 * @param {number} y
 * @param {number} maxLength
 */
export function polarCoordinates(x, y, maxLength) {
  const angle = (Math.round((Math.atan2(y, x) * 180) / Math.PI) + 360) % 360;
  return { angle, length: Math.round(Math.min(maxLength, Math.hypot(x, y)) * 10) / 10 };
}

/**
 * A color for CSS from red, green and blue, 0 to 255.
 * @param {number[]} rgb
 */
export function cssColor(rgb) {
  return `rgb(${rgb.map((x) => Math.round(x)).join(" ")})`;
}

/**
 * The rows of a matrix, with two rows exchanged.
 * @template Row
 * @param {Row[]} rows
 * @param {number} first
 * @param {number} second
 */
export function swapRows(rows, first, second) {
  return rows.map((row, n) => (n === first ? rows[second] : n === second ? rows[first] : row));
}
