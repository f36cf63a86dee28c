// Pointer and keyboard input of the map and the minimap.

import { addMapGestures } from "./pointer-gestures.js";

/**
 * @import { Cell, Context } from "../../lib/types.js"
 * @import { HeadMap } from "./head-map.js"
 */

/**
 * Lets the user hover, select, zoom and pan the map.
 * @param {Context} context
 * @param {{ map: HeadMap, canvas: HTMLCanvasElement }} parts
 */
export function attachMapInput(context, parts) {
  const { store } = context;
  const { map, canvas } = parts;
  /** @returns {Cell | null} */
  const currentCell = () => {
    const { hoveredCell, query, key } = store.get();
    return hoveredCell ?? (query === null || key === null ? null : { query, key });
  };
  /**
   * @param {number} x
   * @param {number} y
   */
  const pick = (x, y) => {
    const cell = map.cellAt(x, y);
    if (cell) store.set({ ...cell, pinnedTokens: [cell.query] });
    else store.set({ query: null, key: null, pinnedTokens: [] });
  };
  addMapGestures(canvas, {
    zoom: (factor, x = map.left + map.view.width / 2, y = map.top + map.view.height / 2) => {
      map.view.zoom(factor, x - map.left, y - map.top);
      map.draw();
    },
    pan: (x, y) => {
      map.view.pan(x, y);
      map.draw();
    },
    fit: () => {
      map.view.fit();
      map.draw();
    },
    point: (x, y) => store.set({ hoveredCell: reuseIfEqual(store.get().hoveredCell, map.cellAt(x, y)) }),
    pick,
    open: (x, y) => {
      const cell = currentCell();
      if (x !== undefined && y !== undefined) pick(x, y);
      else if (cell) store.set(cell);
      if (store.get().query !== null) store.set({ view: "arithmetic", hoveredCell: null });
    },
    step: (down, right) => {
      const start = currentCell() ?? { query: map.view.rows[0], key: map.view.columns[0] };
      const tokensPerCell = 2 ** map.level;
      /**
       * @param {number} n
       * @param {number} length
       */
      const clamp = (n, length) => Math.max(0, Math.min(length - 1, n));
      const cell = {
        query: clamp(start.query + down * tokensPerCell, map.view.queries),
        key: clamp(start.key + right * tokensPerCell, map.view.keys),
      };
      map.view.reveal(cell.query, cell.key);
      store.set({ ...cell, hoveredCell: null, pinnedTokens: [cell.query] });
    },
  });
}

/**
 * The previous object if both cells are equal, so that the store does not change.
 * @param {Cell | null} previous
 * @param {Cell | null} cell
 */
function reuseIfEqual(previous, cell) {
  return previous && cell && previous.query === cell.query && previous.key === cell.key ? previous : cell;
}

/**
 * Lets the user move the map by its minimap.
 * @param {{ minimapCanvas: HTMLCanvasElement, minimap: HeadMap, map: HeadMap }} parts
 */
export function attachMinimapInput({ minimapCanvas, minimap, map }) {
  addMapGestures(minimapCanvas, {
    pick: (x, y) => {
      const cell = minimap.cellAt(x, y);
      if (cell) map.view.centerOn(cell.query, cell.key);
      map.draw();
    },
    pan: (x, y) => {
      map.view.left += x / minimap.view.pixelsPerToken;
      map.view.top += y / minimap.view.pixelsPerToken;
      map.view.clamp();
      map.draw();
    },
    zoom: (factor) => {
      map.view.zoom(factor, map.view.width / 2, map.view.height / 2);
      map.draw();
    },
  });
}
