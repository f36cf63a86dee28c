// The key of a request in an exported file.

/** @import { Json, Params } from "../lib/types.js" */

/**
 * The key of a request, as html_export.py writes it: sorted names, no spaces, no nulls.
 * @param {string} name
 * @param {Params} params
 */
export function requestKey(name, params) {
  return name + canonicalJson({ ...params, progress_id: null });
}

/**
 * @param {Json} value
 * @returns {string}
 */
function canonicalJson(value) {
  if (Array.isArray(value)) return `[${value.map(canonicalJson).join(",")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const fields = Object.entries(value).filter(([, field]) => field !== null && field !== undefined);
  const sorted = fields.sort(([a], [b]) => (a < b ? -1 : 1));
  return `{${sorted.map(([name, field]) => `${JSON.stringify(name)}:${canonicalJson(field)}`).join(",")}}`;
}
