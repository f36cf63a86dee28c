// Serves the thumbnail of a head as the only level of its map, if an exported file contains no finer level.

/** @import { Layer, OfflineEndpoint, PackedArray, PooledArrays } from "../lib/types.js" */

const STORED_THUMBNAIL_SIZE = 64; // cells per side

/**
 * The response of map_info or tile from a thumbnail; null for other endpoints, and if keys are hidden.
 * @type {OfflineEndpoint}
 */
export async function offlineThumbnails(storedResponse, name, params) {
  if ((name !== "map_info" && name !== "tile") || params.hidden_keys) return null;
  const { session, layer, head } = /** @type {Record<string, number>} */ (params);
  const thumbnails = await storedResponse("thumbnails", { session, layer, size: STORED_THUMBNAIL_SIZE });
  const serverState = await storedResponse("state", {});
  const layers = serverState?.values.sessions.find(({ id }) => id === session)?.layers ?? [];
  const layerInfo = layers.find(({ index }) => index === layer);
  if (!layerInfo || !thumbnails) return null;
  const headIndex = (thumbnails.values.heads ?? []).indexOf(head);
  if (headIndex < 0) return null;
  const level = levelOf(layerInfo);
  if (name === "map_info") return { values: mapInfo(layerInfo, level, thumbnails.values.sampled_rows), arrays: {} };
  return params.level === level ? tile(thumbnails.arrays, headIndex) : null;
}

/**
 * The level at which a map has at most STORED_THUMBNAIL_SIZE cells per side.
 * @param {Layer} layer
 */
function levelOf({ num_queries, num_keys }) {
  return Math.max(0, Math.ceil(Math.log2(Math.ceil(Math.max(num_queries, num_keys) / STORED_THUMBNAIL_SIZE))));
}

/**
 * @param {Layer} layer
 * @param {number} level
 * @param {number | null | undefined} sampled_rows
 */
function mapInfo({ num_queries, num_keys }, level, sampled_rows) {
  const sizes = { num_levels: level + 1, tile_size: STORED_THUMBNAIL_SIZE, num_queries, num_keys };
  return { ...sizes, finest_level: level, sink: null, sampled_rows };
}

/**
 * @param {PooledArrays} arrays
 * @param {number} headIndex
 */
function tile(arrays, headIndex) {
  /** @param {PackedArray} thumbnails */
  const thumbnail = ({ data, shape: [, rows, columns] }) => ({
    data: data.subarray(headIndex * rows * columns, (headIndex + 1) * rows * columns),
    shape: [rows, columns],
  });
  return { values: {}, arrays: { mean: thumbnail(arrays.mean), max: thumbnail(arrays.max) } };
}
