// The grid of tiles of a map: which tiles are visible, in which order they are requested, and their parts.

/**
 * @import { TilePosition } from "../../lib/types.js"
 * @import { Viewport } from "./viewport.js"
 */

/**
 * The positions of the visible tiles of a level.
 * @param {Viewport} view
 * @param {number} tileSize cells per side of a tile
 * @param {number} level
 */
export function visibleTiles(view, tileSize, level) {
  const tokens = tileSize * 2 ** level; // per side of a tile
  /** @type {TilePosition[]} */
  const tiles = [];
  const [top, bottom] = view.rows;
  const [left, right] = view.columns;
  for (let row = Math.floor(top / tokens); row * tokens < bottom; row += 1)
    for (let column = Math.floor(left / tokens); column * tokens < right; column += 1)
      tiles.push({ level, row, column });
  return tiles;
}

/**
 * Tiles in the order in which they are requested: from the center of the view outward.
 * @param {Viewport} view
 * @param {number} tileSize cells per side of a tile
 * @param {TilePosition[]} tiles
 */
export function fromCenterOutward(view, tileSize, tiles) {
  const query = view.top + view.height / view.pixelsPerToken / 2;
  const key = view.left + view.width / view.pixelsPerToken / 2;
  /** @param {TilePosition} position */
  const distance = ({ level, row, column }) => {
    const tokens = tileSize * 2 ** level;
    return Math.hypot((row + 0.5) * tokens - query, (column + 0.5) * tokens - key);
  };
  return tiles.slice().sort((a, b) => distance(a) - distance(b));
}

/**
 * The tile that contains a weight at a level, and the index of the weight's cell in its row and column.
 * @param {number} query
 * @param {number} key
 * @param {number} tileSize cells per side of a tile
 * @param {number} level
 */
export function locateCell(query, key, tileSize, level) {
  const [i, j] = [query >> level, key >> level];
  const position = { level, row: Math.floor(i / tileSize), column: Math.floor(j / tileSize) };
  return { position, i: i % tileSize, j: j % tileSize };
}

/**
 * The tile `up` levels coarser that contains a tile, and where the tile is in it: its corner and its side in cells.
 * @param {TilePosition} tile
 * @param {number} up
 * @param {number} tileSize cells per side of a tile
 */
export function partOfCoarserTile(tile, up, tileSize) {
  const position = { level: tile.level + up, row: tile.row >> up, column: tile.column >> up };
  const side = tileSize / 2 ** up;
  const [x, y] = [(tile.column - (position.column << up)) * side, (tile.row - (position.row << up)) * side];
  return { position, x, y, side };
}
