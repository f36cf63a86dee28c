// Computes rows, columns and the largest weights of a head from its exact tiles in an exported file.

/** @import { EndpointName, OfflineEndpoint, Payload, StoredResponse } from "../lib/types.js" */

/**
 * @typedef {{data: Float32Array, queries: number, keys: number, tileSize: number}} HeadMatrix
 * @typedef {Object} WeightParams the parameters of all these endpoints
 * @property {number} session
 * @property {number} layer
 * @property {number} [head]
 * @property {number[]} [heads]
 * @property {number[]} [hidden_keys]
 * @property {number[]} queries
 * @property {number[]} keys
 * @property {number} level
 * @property {number} row
 * @property {number} column
 * @property {number} query_start
 * @property {number} query_end
 * @property {number} mass
 */

/** @type {Partial<Record<EndpointName, (matrices: HeadMatrix[], params: WeightParams) => Payload>>} */
const ENDPOINTS = { query_weights: queryWeights, key_weights: keyWeights, top_weights: topWeights, tile };

/**
 * The response of one of these endpoints; null for other endpoints, and if a tile is missing.
 * @type {OfflineEndpoint}
 */
export async function offlineWeights(storedResponse, name, requestParams) {
  const params = /** @type {WeightParams} */ (requestParams);
  const respond = ENDPOINTS[name];
  if (!respond || (name === "tile" && !(params.hidden_keys && params.level === 0))) return null;
  const matrices = [];
  for (const head of params.heads ?? [params.head]) {
    const matrix = await readMatrix(storedResponse, params, head);
    if (!matrix) return null;
    matrices.push(params.hidden_keys ? hideKeys(matrix, params.hidden_keys) : matrix);
  }
  return respond(matrices, params);
}

/**
 * The weights of a head, joined from its tiles; null if a tile is missing.
 * @param {StoredResponse} storedResponse
 * @param {WeightParams} params
 * @param {number | undefined} head
 * @returns {Promise<HeadMatrix | null>}
 */
async function readMatrix(storedResponse, { session, layer }, head) {
  const mapInfo = await storedResponse("map_info", { session, layer, head });
  if (!mapInfo) return null;
  const { num_queries: queries, num_keys: keys, tile_size: tileSize } = mapInfo.values;
  const data = new Float32Array(queries * keys);
  for (let row = 0; row * tileSize < queries; row += 1) {
    for (let column = 0; column * tileSize < keys; column += 1) {
      const response = await storedResponse("tile", { session, layer, head, level: 0, row, column });
      if (!response) return null;
      const [height, width] = response.arrays.mean.shape;
      for (let i = 0; i < height; i += 1) {
        const tileRow = response.arrays.mean.data.subarray(i * width, (i + 1) * width);
        data.set(tileRow, (row * tileSize + i) * keys + column * tileSize);
      }
    }
  }
  return { data, queries, keys, tileSize };
}

/**
 * The matrix without the weights on hidden keys; each row is divided by its remaining sum.
 * @param {HeadMatrix} matrix
 * @param {number[]} hiddenKeys
 */
function hideKeys({ data, queries, keys, tileSize }, hiddenKeys) {
  const renormalized = data.slice();
  for (let i = 0; i < queries; i += 1) {
    const row = renormalized.subarray(i * keys, (i + 1) * keys);
    for (const j of hiddenKeys) row[j] = 0;
    const sum = row.reduce((total, w) => total + w, 0);
    if (sum > 0) for (let j = 0; j < keys; j += 1) row[j] /= sum;
  }
  return { data: renormalized, queries, keys, tileSize };
}

/**
 * @param {HeadMatrix[]} matrices
 * @param {WeightParams} params
 */
function queryWeights(matrices, { queries }) {
  return payload(
    "mean",
    matrices.map((matrix) => meanOfRows(matrix, queries)),
  );
}

/**
 * @param {HeadMatrix[]} matrices
 * @param {WeightParams} params
 */
function keyWeights(matrices, { keys }) {
  return payload(
    "sum",
    matrices.map((matrix) => sumOfColumns(matrix, keys)),
  );
}

/**
 * A tile of level 0.
 * @param {HeadMatrix[]} matrices
 * @param {WeightParams} params
 */
function tile([{ data, queries, keys, tileSize }], { row, column }) {
  const [top, left] = [row * tileSize, column * tileSize];
  const [height, width] = [Math.min(tileSize, queries - top), Math.min(tileSize, keys - left)];
  const rows = Array.from({ length: height }, (_, i) =>
    data.subarray((top + i) * keys + left, (top + i) * keys + left + width),
  );
  return payload("mean", rows);
}

/**
 * @param {HeadMatrix} matrix
 * @param {number[]} rows
 */
function meanOfRows({ data, keys }, rows) {
  const mean = new Float32Array(keys);
  for (const i of rows) for (let j = 0; j < keys; j += 1) mean[j] += data[i * keys + j] / rows.length;
  return mean;
}

/**
 * @param {HeadMatrix} matrix
 * @param {number[]} columns
 */
function sumOfColumns({ data, queries, keys }, columns) {
  const sum = new Float32Array(queries);
  for (let i = 0; i < queries; i += 1) for (const j of columns) sum[i] += data[i * keys + j];
  return sum;
}

/**
 * @param {string} name
 * @param {Float32Array[]} rows
 */
function payload(name, rows) {
  const data = new Float32Array(rows.length * rows[0].length);
  for (const [n, row] of rows.entries()) data.set(row, n * row.length);
  return { values: {}, arrays: { [name]: { data, shape: [rows.length, rows[0].length] } } };
}

/**
 * The largest weights of each query, until their sum is the fraction `mass` of the row's sum.
 * @param {HeadMatrix[]} matrices
 * @param {WeightParams} params
 */
function topWeights(matrices, { heads = [], query_start, query_end, mass }) {
  /** @type {Array<[query: number, key: number, head: number, weight: number]>} */
  const lines = [];
  matrices.forEach(({ data, queries, keys }, n) => {
    for (let i = query_start; i < Math.min(query_end, queries); i += 1) {
      const weights = data.subarray(i * keys, (i + 1) * keys);
      let remaining = mass * weights.reduce((sum, w) => sum + w, 0);
      for (const j of [...weights.keys()].sort((a, b) => weights[b] - weights[a])) {
        if (remaining <= 0 || weights[j] <= 0) break;
        remaining -= weights[j];
        lines.push([i, j, heads[n], weights[j]]);
      }
    }
  });
  const shape = [lines.length];
  const [query, key, head] = [0, 1, 2].map((n) => ({ data: Int32Array.from(lines, (line) => line[n]), shape }));
  const weight = { data: Float32Array.from(lines, (line) => line[3]), shape };
  return { values: {}, arrays: { query, key, head, weight } };
}
