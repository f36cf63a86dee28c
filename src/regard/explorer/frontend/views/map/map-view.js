// The Map view: the weights of one head as a map, with the text beside it.

import { HeadMap } from "../../charts/map/head-map.js";
import { attachMapInput, attachMinimapInput } from "../../charts/map/map-input.js";
import { drawMapLegend } from "../../charts/map/map-legend.js";
import { element, segmentedControl } from "../../lib/element.js";
import { effectiveScale, headMapData, selectHead, selectTokens } from "../../state/selectors.js";
import { effectiveTheme } from "../../state/theme.js";
import { headToolbar } from "../../widgets/head-toolbar.js";
import { tokenSearch } from "../../widgets/token-search.js";
import { drawReadout } from "./cell-readout.js";
import { shadedText } from "./shaded-text.js";
import { drawSinkToggle } from "./sink-toggle.js";

/** @import { ColorOptions, Context, MapInfo, ScaleName, State } from "../../lib/types.js" */

const MIN_SEARCH_TOKEN_PX = 16; // a search zooms in at least this far
const KEYBOARD_HINT =
  "Arrow keys move from cell to cell, plus and minus zoom, 0 shows the whole map, Enter opens the arithmetic.";

/**
 * @typedef {Object} Parts
 * @property {HTMLCanvasElement} canvas
 * @property {HTMLCanvasElement} minimapCanvas
 * @property {HeadMap} map
 * @property {HeadMap} minimap
 * @property {HTMLElement} readout
 * @property {HTMLElement} legend
 * @property {HTMLElement} badge
 * @property {HTMLElement} sinkToggle
 * @property {{mark(scale: ScaleName): void}} scaleControl
 * @property {MapInfo | null} mapInfo
 * @property {boolean} hasViewport whether the viewport of the URL was applied
 * @property {string} sentence the last announced reading
 */

/** @param {Context} context */
export function mapView(context) {
  const canvas = element("canvas", {
    class: "map",
    tabindex: 0,
    role: "application",
    "aria-label": `Attention map. ${KEYBOARD_HINT}`,
  });
  const minimapCanvas = element("canvas", {
    class: "minimap",
    "aria-label": "Minimap; click to move the map",
    role: "img",
    hidden: true,
  });
  const map = new HeadMap(canvas, context.tiles, {
    changed: () => updateAfterDraw(context, parts),
    failed: context.showError,
  });
  const scaleControl = segmentedControl(
    "Color scale",
    [
      ["linear", "Linear", "Colors are proportional to the weight"],
      ["log", "Log", "Colors follow the logarithm of the weight"],
      ["rank", "Rank", "Colors follow the rank among the visible weights"],
    ],
    effectiveScale(context.store.get()),
    (scale) => context.store.set({ scale }),
  );
  /** @type {Parts} */
  const parts = {
    canvas,
    minimapCanvas,
    map,
    minimap: new HeadMap(minimapCanvas, context.tiles, { axes: false }),
    readout: element("div", { class: "readout" }),
    legend: element("div", { class: "legend" }),
    badge: element("span", { class: "badge", hidden: true }),
    sinkToggle: element("div"),
    scaleControl,
    mapInfo: null,
    hasViewport: false,
    sentence: "",
  };
  const text = shadedText(context);
  const controls = [
    tokenSearch(context, (query, key) => goToCell(context, parts, query, key)),
    segmentedControl(
      "Pooling",
      [
        ["mean", "Mean", "A cell shows the mean of its weights"],
        ["max", "Max", "A cell shows the largest of its weights"],
      ],
      context.store.get().pooling,
      (pooling) => context.store.set({ pooling }),
    ),
    scaleControl,
  ];
  attachMapInput(context, parts);
  attachMinimapInput(parts);
  context.visibleMaps.push(parts.map);
  context.subscribe((state, changed) => onStateChange(context, parts, state, changed));
  context.end(() => {
    context.visibleMaps.splice(context.visibleMaps.indexOf(parts.map), 1);
    parts.map.dispose();
    parts.minimap.dispose();
  });
  show(context, parts);
  const side = element(
    "aside",
    { class: "sidebar" },
    element("div", { class: "readout-row" }, parts.readout, minimapCanvas),
    text.node,
  );
  return element(
    "section",
    { class: "view map-view", "aria-label": "Map" },
    headToolbar(context, ...controls),
    element(
      "div",
      { class: "two-columns" },
      element(
        "div",
        { class: "map-area" },
        canvas,
        element("div", { class: "map-footer" }, parts.legend, parts.sinkToggle, parts.badge),
      ),
      side,
    ),
  );
}

/**
 * @param {State} state
 * @returns {ColorOptions}
 */
function colorOptions(state) {
  return { pooling: state.pooling, scale: effectiveScale(state), palette: state.palette, theme: effectiveTheme(state) };
}

/**
 * Requests the size of the map, then shows the map.
 * @param {Context} context
 * @param {Parts} parts
 */
async function show(context, parts) {
  const { session, layer, head, stateVersion } = context.store.get();
  try {
    const { values } = await context.requestCached("map_info", { session, layer, head });
    const state = context.store.get();
    const isSame = state.session === session && state.layer === layer && state.head === head;
    if (!isSame || state.stateVersion !== stateVersion) return;
    parts.mapInfo = values;
    const mapData = headMapData(state, values);
    for (const map of [parts.map, parts.minimap]) {
      map.setColorOptions(colorOptions(state));
      map.setData(mapData);
    }
    if (state.viewport && !parts.hasViewport) {
      const [left, top, pixelsPerToken] = state.viewport;
      Object.assign(parts.map.view, { left, top, pixelsPerToken }).clamp();
    }
    parts.hasViewport = true;
    parts.scaleControl.mark(effectiveScale(state));
    markCells(context, parts);
    drawSinkToggle(context, parts, values);
  } catch (error) {
    context.showError(error);
  }
}

/**
 * @param {Context} context
 * @param {Parts} parts
 * @param {State} state
 * @param {Set<string>} changed
 */
function onStateChange(context, parts, state, changed) {
  /** @param {...string} names */
  const has = (...names) => names.some((name) => changed.has(name));
  if (has("serverState", "session", "layer", "head", "hideSink")) show(context, parts);
  if (has("pooling", "scale", "palette", "theme", "isDarkEnvironment")) {
    parts.map.setColorOptions(colorOptions(state));
    parts.minimap.setColorOptions(colorOptions(state));
    parts.scaleControl.mark(effectiveScale(state));
  }
  if (has("hoveredCell", "query", "key")) markCells(context, parts);
}

/**
 * @param {Context} context
 * @param {Parts} parts
 */
function markCells(context, parts) {
  const { hoveredCell, query, key } = context.store.get();
  parts.map.setMarks({ hoveredCell, selectedCell: query === null || key === null ? null : { query, key } });
}

/**
 * Updates the readout, the legend, the minimap and the URL after the map was drawn.
 * @param {Context} context
 * @param {Parts} parts
 */
function updateAfterDraw(context, parts) {
  const state = context.store.get();
  const { map } = parts;
  if (!parts.mapInfo) return;
  const { session, layer } = selectHead(state);
  const cell =
    state.hoveredCell ?? (state.query === null || state.key === null ? null : { query: state.query, key: state.key });
  const tokens = selectTokens(session, layer);
  const weight = cell ? map.valueAt(cell.query, cell.key) : null;
  const hasSelection = state.query !== null && state.key !== null;
  const sentence = drawReadout(parts.readout, {
    cell,
    weight,
    tokens,
    pooling: state.pooling,
    open: hasSelection ? () => context.store.set({ view: "arithmetic" }) : null,
  });
  if (sentence && sentence !== parts.sentence && weight) context.announce(sentence);
  parts.sentence = sentence;
  drawMapLegend(parts.legend, map, effectiveScale(state), context);
  const { view } = map;
  parts.minimapCanvas.hidden = view.isFitted;
  if (!view.isFitted) {
    if (!parts.minimap.canvas.width || parts.minimap.view.width <= 1) parts.minimap.resize();
    const [top, bottom] = view.rows;
    const [left, right] = view.columns;
    parts.minimap.setMarks({ frame: { left, right, top, bottom } });
  }
  const viewport = view.isFitted ? null : [view.left, view.top, view.pixelsPerToken];
  if (JSON.stringify(viewport) !== JSON.stringify(state.viewport)) context.store.set({ viewport });
}

/**
 * Selects a cell and centers the map on it.
 * @param {Context} context
 * @param {Parts} parts
 * @param {number} query
 * @param {number} key
 */
function goToCell({ store }, { map }, query, key) {
  map.view.centerOn(query, key, Math.max(map.view.pixelsPerToken, MIN_SEARCH_TOKEN_PX));
  store.set({ query, key, hoveredCell: null, pinnedTokens: [query] });
  map.draw();
}
