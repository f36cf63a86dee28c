// The Compare view: the maps of two sessions with a shared cursor, and their difference.

import { HeadMap } from "../../charts/map/head-map.js";
import { addMapGestures } from "../../charts/map/pointer-gestures.js";
import { element, replaceContent, segmentedControl } from "../../lib/element.js";
import { formatNumber } from "../../lib/format.js";
import { effectiveScale, headMapData, selectHead } from "../../state/selectors.js";
import { effectiveTheme } from "../../state/theme.js";
import { headToolbar } from "../../widgets/head-toolbar.js";
import { changedHeadsTable } from "./changed-heads-table.js";
import { counterpartHead, fractionDifferenceMap, selectOtherSession, weightDifferenceMap } from "./difference-maps.js";
import { drawSessionPicker } from "./session-picker.js";

/**
 * @import { Viewport } from "../../charts/map/viewport.js"
 * @import { Comparison, Context, MapInfo, Session, State } from "../../lib/types.js"
 */

const ONE_SESSION_HINT = {
  server: "There is only one text so far. Type another text or select another model, then press Compare.",
  widget: "The widget shows one recording. To compare two, use regard explore or recording.compare(other).",
  file: "This file contains one text. To compare two, use regard explore.",
};

/**
 * @typedef {"first" | "second" | "difference"} PanelName
 * @typedef {{node: HTMLElement, map: HeadMap, heading: HTMLElement, value: HTMLElement}} Panel
 * @typedef {Object} Parts
 * @property {HTMLFormElement} sessionPicker
 * @property {HTMLElement} reason
 * @property {HTMLElement} table
 * @property {HTMLElement} maps
 * @property {Record<PanelName, Panel>} panels
 * @property {Comparison | null} comparison
 * @property {number} requestId
 */

/** @param {Context} context */
export function compareView(context) {
  const { store } = context;
  /** @type {Parts} */
  const parts = {
    sessionPicker: element("form", { class: "toolbar" }),
    reason: element("p", { class: "hint boxed", hidden: true }),
    table: element("div", { class: "changed-heads" }),
    maps: element("div", { class: "comparison-maps" }),
    get panels() {
      return panels;
    },
    comparison: null,
    requestId: 0,
  };
  const panels = {
    first: createPanel(context, parts, "first", "First"),
    second: createPanel(context, parts, "second", "Second"),
    difference: createPanel(context, parts, "difference", "First minus second"),
  };
  parts.maps.append(...Object.values(parts.panels).map(({ node }) => node));
  const pooling = segmentedControl(
    "Pooling",
    [
      ["mean", "Mean"],
      ["max", "Max"],
    ],
    store.get().pooling,
    (pooling) => store.set({ pooling }),
  );
  context.subscribe((_, changed) => {
    /** @param {...string} names */
    const has = (...names) => names.some((name) => changed.has(name));
    if (has("serverState", "session", "otherSession")) loadComparison(context, parts);
    else if (has("layer", "head")) loadMaps(context, parts);
    if (has("pooling", "theme", "isDarkEnvironment")) updateColors(context, parts);
    if (has("hoveredCell")) markHoveredCell(context, parts);
  });
  context.end(() => {
    for (const { map } of Object.values(parts.panels)) map.dispose();
  });
  loadComparison(context, parts);
  return element(
    "section",
    { class: "view compare-view", "aria-label": "Compare" },
    headToolbar(context, pooling),
    parts.sessionPicker,
    parts.reason,
    parts.maps,
    parts.table,
  );
}

/**
 * @param {Context} context
 * @param {Parts} parts
 * @param {PanelName} name
 * @param {string} title
 */
function createPanel(context, parts, name, title) {
  const canvas = element("canvas", { class: "map", tabindex: 0, role: "img", "aria-label": title });
  const map = new HeadMap(canvas, context.tiles, { failed: context.showError, changed: () => showValues(parts) });
  const heading = element("h3", {}, title);
  const value = element("output", { class: "value", "data-panel-value": name });
  /** Whether cells are pairs of tokens, and not relative positions. */
  const hasTokenCells = () => name !== "difference" || parts.comparison?.has_equal_shapes;
  /** @param {(view: Viewport) => void} change */
  const changeAllViews = (change) => {
    for (const panel of Object.values(parts.panels)) {
      change(panel.map.view);
      panel.map.draw();
    }
  };
  addMapGestures(canvas, {
    zoom: (factor, x = map.left + map.view.width / 2, y = map.top + map.view.height / 2) =>
      changeAllViews((view) => view.zoom(factor, x - map.left, y - map.top)),
    pan: (x, y) => changeAllViews((view) => view.pan(x, y)),
    fit: () => changeAllViews((view) => view.fit()),
    point: (x, y) => {
      if (hasTokenCells()) context.store.set({ hoveredCell: map.cellAt(x, y) });
    },
    pick: (x, y) => {
      const cell = map.cellAt(x, y);
      if (cell) context.store.set(cell);
    },
    step: (down, right) => {
      const { query, key } = context.store.get().hoveredCell ?? { query: 0, key: 0 };
      /**
       * @param {number} n
       * @param {number} length
       */
      const clamp = (n, length) => Math.max(0, Math.min(length - 1, n));
      context.store.set({
        hoveredCell: { query: clamp(query + down, map.view.queries), key: clamp(key + right, map.view.keys) },
      });
    },
  });
  return {
    node: element(
      "figure",
      { class: "comparison-panel", "data-panel": name },
      element("figcaption", {}, heading, value),
      canvas,
    ),
    map,
    heading,
    value,
  };
}

/**
 * Requests the comparison of the two sessions, then shows the maps.
 * @param {Context} context
 * @param {Parts} parts
 */
async function loadComparison(context, parts) {
  const { store } = context;
  const state = store.get();
  const other = selectOtherSession(state);
  drawSessionPicker(context, parts.sessionPicker, other);
  parts.comparison = null;
  parts.reason.hidden = Boolean(other);
  parts.maps.hidden = !other;
  if (!other) {
    replaceContent(parts.reason, ONE_SESSION_HINT[context.source.kind]);
    return;
  }
  try {
    const params = { session: state.session, other_session: other.id };
    const { values } = await context.requestCached("compare", params);
    const current = store.get();
    const isSame = current.stateVersion === state.stateVersion && current.session === state.session;
    if (!isSame || selectOtherSession(current)?.id !== other.id) return;
    parts.comparison = values;
    parts.reason.hidden = !values.reason;
    replaceContent(parts.reason, values.reason ?? "");
    replaceContent(parts.table, changedHeadsTable(context, values));
    await loadMaps(context, parts);
  } catch (error) {
    context.showError(error);
  }
}

/**
 * Requests the sizes of both maps, then shows the maps and their difference.
 * @param {Context} context
 * @param {Parts} parts
 */
async function loadMaps(context, parts) {
  const state = context.store.get();
  const other = selectOtherSession(state);
  if (!other || !parts.comparison) return;
  parts.requestId += 1;
  const { requestId, comparison } = parts;
  const { layer, head: headIndex } = selectHead(state);
  const head = { layer: layer.index, head: headIndex };
  const otherHead = counterpartHead(other, head);
  try {
    const [first, second] = await Promise.all([
      context.requestCached("map_info", { session: state.session, ...head }),
      context.requestCached("map_info", { session: other.id, ...otherHead }),
    ]);
    if (requestId !== parts.requestId || comparison !== parts.comparison) return;
    updateColors(context, parts);
    showMaps(state, other, otherHead, [first.values, second.values], parts);
  } catch (error) {
    context.showError(error);
  }
}

/**
 * @param {State} state
 * @param {Session} other
 * @param {{ layer: number, head: number }} otherHead
 * @param {[MapInfo, MapInfo]} infos
 * @param {Parts} parts
 */
function showMaps(state, other, otherHead, [firstInfo, secondInfo], { panels, comparison }) {
  const { first, second, difference } = panels;
  const { session, layer, head } = selectHead(state);
  const hasEqualShapes = Boolean(comparison?.has_equal_shapes);
  first.map.setData(headMapData({ ...state, hideSink: false }, firstInfo));
  second.map.setData(headMapData({ ...state, ...otherHead, hideSink: false }, secondInfo, other.id));
  first.heading.textContent = session.title;
  const isSame = otherHead.layer === layer.index && otherHead.head === head;
  second.heading.textContent = isSame ? other.title : `${otherHead.layer}.${otherHead.head} of ${other.title}`;
  difference.map.setData(
    hasEqualShapes
      ? weightDifferenceMap(state, firstInfo, other.id)
      : fractionDifferenceMap(state, other.id, otherHead),
  );
  difference.heading.textContent = hasEqualShapes ? "First minus second" : "First minus second, by relative position";
}

/**
 * @param {Context} context
 * @param {Parts} parts
 */
function updateColors({ store }, { panels }) {
  const state = store.get();
  for (const { map } of Object.values(panels))
    map.setColorOptions({
      pooling: state.pooling,
      scale: effectiveScale(state),
      palette: "ink",
      theme: effectiveTheme(state),
    });
}

/**
 * @param {Context} context
 * @param {Parts} parts
 */
function markHoveredCell({ store }, { panels, comparison }) {
  const { hoveredCell } = store.get();
  for (const [name, { map }] of Object.entries(panels)) {
    const isInside = hoveredCell && hoveredCell.query < map.view.queries && hoveredCell.key < map.view.keys;
    map.setMarks({
      hoveredCell: isInside && (name !== "difference" || comparison?.has_equal_shapes) ? hoveredCell : null,
    });
  }
}

/** @param {Parts} parts */
function showValues({ panels }) {
  for (const { map, value } of Object.values(panels)) {
    const { hoveredCell } = map.marks;
    const cell = hoveredCell && map.data ? map.valueAt(hoveredCell.query, hoveredCell.key) : null;
    value.textContent = cell ? formatNumber(cell.value) : "";
    if (cell) value.dataset.value = String(cell.value);
  }
}
