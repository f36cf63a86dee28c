// The second session of a comparison, its head, and the difference maps.

import { formatWholePercent } from "../../lib/format.js";
import { selectHead, selectTokens } from "../../state/selectors.js";

/** @import { MapData, MapInfo, Session, State } from "../../lib/types.js" */

const FRACTION_GRID_SIZE = 16; // cells per side, for texts of different lengths

/**
 * The session that the open one is compared with; null if there is only one.
 * @param {State} state
 */
export function selectOtherSession(state) {
  const others = (state.serverState?.sessions ?? []).filter(({ id }) => id !== state.session);
  return others.find(({ id }) => id === state.otherSession) ?? others[0] ?? null;
}

/**
 * The layer and head of another session with the same indices; its first layer or head if they do not exist.
 * @param {Session} other
 * @param {{ layer: number, head: number }} head
 */
export function counterpartHead(other, { layer, head }) {
  const otherLayer = other.layers.find(({ index }) => index === layer) ?? other.layers[0];
  const heads = otherLayer.head_indices;
  return { layer: otherLayer.index, head: heads.includes(head) ? head : heads[0] };
}

/**
 * The difference of two texts of different lengths: both maps are summed on one grid of relative positions.
 * @param {State} state
 * @param {number} other
 * @param {{ layer: number, head: number }} otherHead
 * @returns {MapData}
 */
export function fractionDifferenceMap(state, other, otherHead) {
  const { layer, head } = selectHead(state);
  const params = {
    session: state.session,
    other_session: other,
    layer: layer.index,
    head,
    other_layer: otherHead.layer,
    other_head: otherHead.head,
    grid_size: FRACTION_GRID_SIZE,
  };
  const name = `fractions ${state.stateVersion} ${JSON.stringify(params)}`;
  const labels = Array.from({ length: FRACTION_GRID_SIZE }, (_, n) => formatWholePercent(n / FRACTION_GRID_SIZE));
  return {
    name,
    tileRequest: () => ({ key: name, name: "difference_map", params }),
    signed: true,
    numQueries: FRACTION_GRID_SIZE,
    numKeys: FRACTION_GRID_SIZE,
    numLevels: 1,
    tileSize: FRACTION_GRID_SIZE,
    rowTokens: labels,
    columnTokens: labels,
  };
}

/**
 * The difference of two texts of equal lengths, weight by weight.
 * @param {State} state
 * @param {MapInfo} mapInfo
 * @param {number} other
 * @returns {MapData}
 */
export function weightDifferenceMap(state, mapInfo, other) {
  const { session, layer, head } = selectHead(state);
  const params = { session: state.session, other_session: other, layer: layer.index, head };
  const name = `difference ${state.stateVersion} ${JSON.stringify(params)}`;
  const tokens = selectTokens(session, layer);
  /** @type {MapData["tileRequest"]} */
  const tileRequest = (level, row, column) => ({
    key: `${name} ${level} ${row} ${column}`,
    name: "difference_tile",
    params: { ...params, level, row, column },
  });
  return {
    name,
    tileRequest,
    signed: true,
    numQueries: mapInfo.num_queries,
    numKeys: mapInfo.num_keys,
    numLevels: mapInfo.num_levels,
    tileSize: mapInfo.tile_size,
    rowTokens: tokens.rowLabels,
    columnTokens: tokens.columnLabels,
  };
}
