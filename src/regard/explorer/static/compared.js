// What two recordings are compared by: which the other one is, which head, and the maps of their difference.

import { layerOf, shownOf, tokensOf } from "./subject.js";

const SHARES = 16; // cells a side when texts have different lengths

export function otherOf(state) {
  const others = state.world.shown.filter((each) => each.id !== state.shown);
  return others.find((each) => each.id === state.other) ?? others[0] ?? null;
}

/** The head of the same number in another recording, or the first one. */
export function counterpart(other, { layer, head }) {
  const found = other.layers.find((each) => each.number === layer) ?? other.layers[0];
  return { layer: found.number, head: found.heads.includes(head) ? head : found.heads[0] };
}

/** Texts of different lengths: both maps cut into as many cells, whose shares of all weight are subtracted. */
export function shareOf(state, other, there) {
  const params = {
    one: state.shown,
    other,
    layer: layerOf(state).number,
    head: state.head,
    other_layer: there.layer,
    other_head: there.head,
    cells: SHARES,
  };
  const name = `shares ${state.epoch} ${JSON.stringify(params)}`;
  const names = Array.from({ length: SHARES }, (_, n) => `${Math.round((100 * n) / SHARES)} %`);
  return {
    name,
    question: () => ({ key: name, name: "difference_map", params }),
    signed: true,
    queries: SHARES,
    keys: SHARES,
    levels: 1,
    rowTokens: names,
    columnTokens: names,
  };
}

export function differenceOf(state, levels, other) {
  const about = { one: state.shown, other, layer: layerOf(state).number, head: state.head };
  const name = `difference ${state.epoch} ${JSON.stringify(about)}`;
  const tokens = tokensOf(shownOf(state), layerOf(state));
  const question = (level, row, column) => ({
    key: `${name} ${level} ${row} ${column}`,
    name: "difference_tile",
    params: { ...about, level, row, column },
  });
  return {
    name,
    question,
    signed: true,
    queries: levels.queries,
    keys: levels.keys,
    levels: levels.levels,
    rowTokens: tokens.rowLabels,
    columnTokens: tokens.columnLabels,
  };
}
