// What hands do on the map and on the small map beside it.

import { listenToHands } from "./gestures.js";

/** Pointing, picking and moving on the map itself. */
export function handsOnMap(context, parts) {
  const { store } = context;
  const { map, canvas } = parts;
  const current = () => {
    const { hover, query, key } = store.get();
    return hover ?? (query === null || key === null ? null : { query, key });
  };
  const pick = (x, y) => {
    const cell = map.cellAt(x, y);
    if (cell) store.set({ ...cell, locked: [cell.query] });
    else store.set({ query: null, key: null, locked: [] });
  };
  listenToHands(canvas, {
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
    point: (x, y) => store.set({ hover: same(store.get().hover, map.cellAt(x, y)) }),
    pick,
    open: (x, y) => {
      if (x !== undefined) pick(x, y);
      else if (current()) store.set(current());
      if (store.get().query !== null) store.set({ view: "arithmetic", hover: null });
    },
    step: (down, right) => {
      const at = current() ?? { query: map.view.rows[0], key: map.view.columns[0] };
      const by = 2 ** map.level;
      const inside = (n, length) => Math.max(0, Math.min(length - 1, n));
      const cell = {
        query: inside(at.query + down * by, map.view.queries),
        key: inside(at.key + right * by, map.view.keys),
      };
      map.view.reveal(cell.query, cell.key);
      store.set({ ...cell, hover: null, locked: [cell.query] });
    },
  });
}

/** The cell before if it is the same one, so that nobody hears of a change. */
function same(before, now) {
  return before && now && before.query === now.query && before.key === now.key ? before : now;
}

/** Going elsewhere by the small map. */
export function handsOnMinimap({ small, overview, map }) {
  listenToHands(small, {
    pick: (x, y) => {
      const cell = overview.cellAt(x, y);
      if (cell) map.view.centre(cell.query, cell.key);
      map.draw();
    },
    pan: (x, y) => {
      map.view.left += x / overview.view.unit;
      map.view.top += y / overview.view.unit;
      map.view.clamp();
      map.draw();
    },
    zoom: (factor) => {
      map.view.zoom(factor, map.view.width / 2, map.view.height / 2);
      map.draw();
    },
    point: () => {},
    open: () => {},
    step: () => {},
    fit: () => {},
  });
}
