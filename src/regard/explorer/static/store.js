// The one place where the page keeps what it knows. Views read it and listen to it; nothing else is shared.

/**
 * @template T
 * @param {T} initial
 */
export function createStore(initial) {
  let state = initial;
  const listeners = new Set();
  return {
    get: () => state,
    /** Changes some fields; listeners hear the names of those that are different now. */
    set(patch) {
      const changed = Object.keys(patch).filter((name) => !Object.is(state[name], patch[name]));
      if (!changed.length) return;
      state = { ...state, ...patch };
      for (const listener of [...listeners]) listener(state, new Set(changed));
    },
    /** Calls back at every change; gives back what ends that. */
    listen(listener) {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
  };
}

/** What the page knows before anything was asked. */
export const INITIAL = {
  view: "overview",
  world: null, // the answer to "state"
  epoch: 0, // how often it was asked for: what was answered before may be about other texts
  shown: 0,
  layer: null,
  head: null,
  query: null, // the cell that is locked
  key: null,
  hover: null, // {query, key} under the cursor
  locked: [], // tokens that are locked in the text
  side: "query", // in which text they are, where there are two
  words: false, // words instead of tokens
  pool: "max",
  scale: "auto",
  palette: "ink",
  hide: false, // whether the sink is hidden
  place: null, // the part of the map in view: [left, top, pixels a token]
  measure: "entropy_share",
  order: "place",
  kind: "",
  heads: null, // those whose lines are drawn
  mass: 0.8,
  from: 0,
  step: null,
  other: null,
  experiment: "", // of the theory
  theme: "auto",
  dusk: false, // changes when it becomes dark or light around the page
};
