// The store of the page's state. Views share state only through the store: they read it and subscribe to it.

/** @import { Listener, State, Store } from "../lib/types.js" */

/**
 * @template {object} T
 * @param {T} initial
 * @returns {Store<T>}
 */
export function createStore(initial) {
  let state = initial;
  /** @type {Set<Listener<T>>} */
  const listeners = new Set();
  return {
    get: () => state,
    /**
     * Sets fields; calls the listeners with the state and the names of the changed fields.
     * @param {Partial<T>} patch
     */
    set(patch) {
      const names = /** @type {Array<Extract<keyof T, string>>} */ (Object.keys(patch));
      const changed = names.filter((name) => !Object.is(state[name], patch[name]));
      if (!changed.length) return;
      state = { ...state, ...patch };
      for (const listener of [...listeners]) {
        if (listeners.has(listener)) listener(state, new Set(changed)); // an earlier listener may have ended this one
      }
    },
    /**
     * Calls `listener` after every change; returns a function that unsubscribes it.
     * @param {Listener<T>} listener
     */
    subscribe(listener) {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
  };
}

/**
 * The state before the first response of the server; `State` describes the fields.
 * @type {State}
 */
export const INITIAL_STATE = {
  view: "overview",
  serverState: null,
  stateVersion: 0,
  session: 0,
  layer: null,
  head: null,
  query: null,
  key: null,
  hoveredCell: null,
  pinnedTokens: [],
  pinnedSide: "query",
  showWords: false,
  pooling: "max",
  scale: "auto",
  palette: "ink",
  hideSink: false,
  viewport: null,
  measure: "normalized_entropy",
  headOrder: "layer",
  kindFilter: "",
  lineHeads: null,
  lineMass: 0.8,
  lineStart: 0,
  generationStep: null,
  otherSession: null,
  experiment: "",
  galleryFilter: "",
  theme: "auto",
  isDarkEnvironment: false,
};
