// The cache of map tiles. Visible tiles are requested, a few at a time; the size of the cache is limited.

/** @import { PackedArray, Request, Tile, TileRequest } from "../lib/types.js" */

const MAX_CONCURRENT_REQUESTS = 4;
const MAX_CACHED_BYTES = 128 * 2 ** 20;
const PAINTED_TILE_BYTES = 256 * 256 * 4;

/** The tiles of all maps of the page. */
export class TileCache {
  /** @param {{request: Request}} source */
  constructor(source, limit = MAX_CACHED_BYTES) {
    this.source = source;
    this.limit = limit;
    this.bytes = 0;
    /** @type {Map<string, Tile>} */
    this.tiles = new Map(); // the least recently used first
    /** @type {Map<string, AbortController>} */
    this.pending = new Map();
    /** @type {Map<object, {requests: TileRequest[], onTile: (error: unknown) => void}>} */
    this.requestsByViewer = new Map(); // the requests of each viewer in order, and its callback
    /** @type {Map<string, unknown>} */
    this.failures = new Map();
  }

  /**
   * A cached tile; null if it is not cached.
   * @param {string} key
   */
  get(key) {
    const tile = this.tiles.get(key);
    if (!tile) return null;
    this.tiles.delete(key);
    this.tiles.set(key, tile);
    return tile;
  }

  /**
   * Sets the tiles that a viewer needs, in order. Cancels requests for tiles that no viewer needs.
   * @param {object} viewer
   * @param {TileRequest[]} requests
   * @param {(error: unknown) => void} onTile called with the error, or null, after a tile arrives or fails
   */
  setViewerTiles(viewer, requests, onTile) {
    this.requestsByViewer.set(viewer, { requests, onTile });
    const neededKeys = new Set(
      [...this.requestsByViewer.values()].flatMap(({ requests: list }) => list.map(({ key }) => key)),
    );
    for (const [key, controller] of this.pending) {
      if (!neededKeys.has(key)) {
        controller.abort();
        this.pending.delete(key);
      }
    }
    this.fetchNext();
  }

  /**
   * Removes a closed viewer and cancels its requests.
   * @param {object} viewer
   */
  removeViewer(viewer) {
    this.setViewerTiles(viewer, [], () => {});
    this.requestsByViewer.delete(viewer);
  }

  fetchNext() {
    for (const { requests } of this.requestsByViewer.values()) {
      for (const request of requests) {
        if (this.pending.size >= MAX_CONCURRENT_REQUESTS) return;
        const { key } = request;
        if (!this.tiles.has(key) && !this.pending.has(key) && !this.failures.has(key)) this.fetch(request);
      }
    }
  }

  /** @param {TileRequest} request */
  async fetch({ key, name, params }) {
    const controller = new AbortController();
    this.pending.set(key, controller);
    let error = null;
    try {
      const { arrays } = await this.source.request(name, params, controller.signal);
      if (controller.signal.aborted) return;
      this.store(key, toTile(arrays));
    } catch (failure) {
      if (controller.signal.aborted) return;
      error = failure;
      this.failures.set(key, failure);
    }
    this.pending.delete(key);
    for (const { requests, onTile } of this.requestsByViewer.values())
      if (requests.some((request) => request.key === key)) onTile(error);
    this.fetchNext();
  }

  /**
   * Caches a tile; drops the least recently used ones beyond the limit.
   * @param {string} key
   * @param {Tile} tile
   */
  store(key, tile) {
    this.tiles.set(key, tile);
    this.bytes += sizeInBytes(tile);
    for (const [oldestKey, oldest] of this.tiles) {
      if (this.bytes <= this.limit || oldestKey === key) break;
      this.tiles.delete(oldestKey);
      this.bytes -= sizeInBytes(oldest);
    }
  }
}

/** @param {Tile} tile */
function sizeInBytes(tile) {
  return tile.mean.byteLength + tile.max.byteLength + PAINTED_TILE_BYTES;
}

/**
 * @param {{ mean: PackedArray, max?: PackedArray }} arrays
 * @returns {Tile}
 */
function toTile({ mean, max = mean }) {
  const [rows, columns] = mean.shape;
  const maximum = { mean: largestAbsolute(mean.data), max: largestAbsolute(max.data) };
  return { mean: mean.data, max: max.data, rows, columns, maximum };
}

/** @param {Float32Array} values */
function largestAbsolute(values) {
  let maximum = 0;
  for (const value of values) if (Math.abs(value) > maximum) maximum = Math.abs(value);
  return maximum;
}
