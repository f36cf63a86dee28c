// The positions of animated points: interpolation in time, and projection of the sphere.

/** @import { PackedArray } from "../../lib/types.js" */

const TILT = 0.42; // of the sphere's axis toward the viewer, in radians

/**
 * The points at a moment, interpolated linearly between the two nearest ones.
 * @param {PackedArray} points of shape (moments, points, 2 or 3)
 * @param {number} moment
 */
export function interpolatePoints({ data, shape: [moments, count, width] }, moment) {
  const [first, fraction] = [Math.floor(moment), moment % 1];
  const next = Math.min(first + 1, moments - 1);
  /**
   * @param {number} m
   * @param {number} n
   * @param {number} c
   */
  const value = (m, n, c) => data[(m * count + n) * width + c];
  return Array.from({ length: count }, (_, n) =>
    Array.from({ length: width }, (_unused, c) => value(first, n, c) * (1 - fraction) + value(next, n, c) * fraction),
  );
}

/**
 * The orthographic projection of a rotated point: x, y and the depth toward the viewer.
 * @param {number[]} point
 * @param {number} rotation in radians
 * @returns {[x: number, y: number, depth: number]}
 */
export function project(point, rotation) {
  if (point.length === 2) return [point[0], point[1], 0];
  const [x, y, z] = point;
  const [cos, sin] = [Math.cos(rotation), Math.sin(rotation)];
  const [right, depth] = [x * cos - y * sin, x * sin + y * cos];
  return [right, z * Math.cos(TILT) - depth * Math.sin(TILT), -(z * Math.sin(TILT) + depth * Math.cos(TILT))];
}

/**
 * The largest distance of a point from the center.
 * @param {PackedArray} points
 */
export function maxRadius({ data, shape: [, , width] }) {
  let radius = 0;
  for (let n = 0; n < data.length; n += width) radius = Math.max(radius, Math.hypot(...data.subarray(n, n + width)));
  return radius || 1;
}

/**
 * Whether all points are on the unit circle or sphere, which is then drawn.
 * @param {PackedArray} points
 */
export function isOnUnitSphere({ data, shape }) {
  for (let n = 0; n < data.length; n += shape[2])
    if (Math.abs(Math.hypot(...data.subarray(n, n + shape[2])) - 1) > 0.01) return false;
  return true;
}
