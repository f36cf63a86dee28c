// The store of the page's state. Views share state only through the store: they read it and subscribe to it.

/**
 * @template T
 * @param {T} initial
 */
export function createStore(initial) {
  let state = initial;
  const listeners = new Set();
  return {
    get: () => state,
    /** Sets fields; calls the listeners with the state and the names of the changed fields. */
    set(patch) {
      const changed = Object.keys(patch).filter((name) => !Object.is(state[name], patch[name]));
      if (!changed.length) return;
      state = { ...state, ...patch };
      for (const listener of [...listeners]) listener(state, new Set(changed));
    },
    /** Calls `listener` after every change; returns a function that unsubscribes it. */
    subscribe(listener) {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
  };
}

/** The state before the first response of the server. */
export const INITIAL_STATE = {
  view: "overview",
  serverState: null, // the response of the endpoint `state`
  stateVersion: 0, // incremented with each serverState, because earlier responses may belong to other sessions
  session: 0, // the id of the open session
  layer: null,
  head: null,
  query: null, // the selected cell
  key: null,
  hoveredCell: null, // {query, key} under the cursor
  pinnedTokens: [], // tokens selected in the text
  pinnedSide: "query", // the text of the pinned tokens, in cross-attention: "query" or "key"
  showWords: false, // show words instead of tokens
  pooling: "max",
  scale: "auto",
  palette: "ink",
  hideSink: false,
  viewport: null, // the visible part of the map: [left, top, pixels per token]
  measure: "normalized_entropy",
  headOrder: "layer",
  kindFilter: "",
  lineHeads: null, // heads drawn in the Lines view
  lineMass: 0.8,
  lineStart: 0,
  generationStep: null,
  otherSession: null,
  experiment: "", // name of the experiment in the Theory view
  theme: "auto",
  isDarkEnvironment: false, // whether the notebook or the system uses a dark theme
};
