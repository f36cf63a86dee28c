// One head's weights as a map, beside the text that it is about.

import { choice, element } from "./element.js";
import { headBar } from "./headbar.js";
import { HeadMap } from "./headmap.js";
import { drawHide } from "./hidesink.js";
import { legendOf } from "./legend.js";
import { handsOnMap, handsOnMinimap } from "./maphands.js";
import { drawReadout } from "./readout.js";
import { rowFlow } from "./rowflow.js";
import { searchBox } from "./searchbox.js";
import { layerOf, shownOf, subjectOf, tokensOf } from "./subject.js";
import { themeOf } from "./theme.js";

const SHORT = 96; // tokens up to which weights are shown in proportion at first
const KEYS = "Arrow keys move from cell to cell, plus and minus zoom, 0 shows everything, Enter shows the arithmetic.";

export function mapView(context) {
  const canvas = element("canvas", {
    class: "map",
    tabindex: 0,
    role: "application",
    "aria-label": `Attention map. ${KEYS}`,
  });
  const small = element("canvas", {
    class: "minimap",
    "aria-label": "The whole map; click to go there",
    role: "img",
    hidden: true,
  });
  const parts = {
    canvas,
    small,
    readout: element("div", { class: "readout" }),
    legend: element("div", { class: "legend" }),
    badge: element("span", { class: "badge", hidden: true }),
    hide: element("div"),
    levels: null,
  };
  parts.map = new HeadMap(canvas, context.tiles, { changed: () => follow(context, parts), failed: context.fail });
  parts.overview = new HeadMap(small, context.tiles, { axes: false });
  const flow = rowFlow(context);
  const controls = [
    searchBox(context, (query, key) => jump(context, parts, query, key)),
    choice(
      "Pooling",
      [
        ["mean", "Mean", "a cell is the mean of its weights"],
        ["max", "Max", "a cell is its largest weight"],
      ],
      context.store.get().pool,
      (pool) => context.store.set({ pool }),
    ),
    choice(
      "Colours",
      [
        ["linear", "Linear", "in proportion to the weight"],
        ["log", "Log", "by the logarithm of the weight"],
        ["rank", "Rank", "by rank among the weights in view"],
      ],
      scaleName(context.store.get()),
      (scale) => context.store.set({ scale }),
    ),
  ];
  parts.scales = controls[2];
  handsOnMap(context, parts);
  handsOnMinimap(parts);
  context.maps.push(parts.map);
  context.listen((state, changed) => hear(context, parts, state, changed));
  context.end(() => {
    context.maps.splice(context.maps.indexOf(parts.map), 1);
    parts.map.leave();
    parts.overview.leave();
  });
  show(context, parts);
  const side = element(
    "aside",
    { class: "side" },
    element("div", { class: "reading" }, parts.readout, small),
    flow.node,
  );
  return element(
    "section",
    { class: "view map-view", "aria-label": "Map" },
    headBar(context, ...controls),
    element(
      "div",
      { class: "split" },
      element(
        "div",
        { class: "stage" },
        canvas,
        element("div", { class: "under" }, parts.legend, parts.hide, parts.badge),
      ),
      side,
    ),
  );
}

/** The scale that is meant: short texts in proportion, long ones by logarithms, unless somebody chose. */
export function scaleName(state) {
  if (state.scale !== "auto") return state.scale;
  const layer = layerOf(state);
  return layer && Math.max(layer.queries, layer.keys) <= SHORT ? "linear" : "log";
}

function looks(state) {
  return { pool: state.pool, scale: scaleName(state), palette: state.palette, theme: themeOf(state) };
}

/** Asks how large the map is, and shows it. */
async function show(context, parts) {
  const { shown, layer, head, epoch } = context.store.get();
  try {
    const { values } = await context.once("levels", { shown, layer, head });
    const state = context.store.get();
    if (state.shown !== shown || state.layer !== layer || state.head !== head || state.epoch !== epoch) return;
    parts.levels = values;
    const subject = subjectOf(state, values);
    for (const map of [parts.map, parts.overview]) {
      map.paint(looks(state));
      map.show(subject);
    }
    if (state.place && !parts.placed)
      Object.assign(parts.map.view, { left: state.place[0], top: state.place[1], unit: state.place[2] }).clamp();
    parts.placed = true;
    parts.scales.mark(scaleName(state));
    mark(context, parts);
    drawHide(context, parts);
  } catch (error) {
    context.fail(error);
  }
}

function hear(context, parts, state, changed) {
  const has = (...names) => names.some((name) => changed.has(name));
  if (has("world", "shown", "layer", "head", "hide")) show(context, parts);
  if (has("pool", "scale", "palette", "theme", "dusk")) {
    parts.map.paint(looks(state));
    parts.overview.paint(looks(state));
    parts.scales.mark(scaleName(state));
  }
  if (has("hover", "query", "key")) mark(context, parts);
}

function mark(context, parts) {
  const { hover, query, key } = context.store.get();
  parts.map.mark({ hover, locked: query === null || key === null ? null : { query, key } });
}

/** After each drawing: the numbers, the legend and the small map follow. */
function follow(context, parts) {
  const state = context.store.get();
  const { map } = parts;
  const shown = shownOf(state);
  if (!shown || !parts.levels) return;
  const cell =
    state.hover ?? (state.query === null || state.key === null ? null : { query: state.query, key: state.key });
  const tokens = tokensOf(shown, layerOf(state));
  const found = cell ? map.valueAt(cell.query, cell.key) : null;
  const locked = state.query !== null && state.key !== null;
  const said = drawReadout(parts.readout, {
    cell,
    found,
    tokens,
    pool: state.pool,
    open: locked ? () => context.store.set({ view: "arithmetic" }) : null,
  });
  if (said && said !== parts.said && found) context.say(said);
  parts.said = said;
  legendOf(parts.legend, map, scaleName(state), context);
  const { view } = map;
  parts.small.hidden = view.isWhole;
  if (!view.isWhole) {
    if (!parts.overview.canvas.width || parts.overview.view.width <= 1) parts.overview.resize();
    const [top, bottom] = view.rows;
    const [left, right] = view.columns;
    parts.overview.mark({ frame: { left, right, top, bottom } });
  }
  const place = view.isWhole ? null : [view.left, view.top, view.unit];
  if (JSON.stringify(place) !== JSON.stringify(state.place)) context.store.set({ place });
}

function jump({ store }, { map }, query, key) {
  map.view.centre(query, key, Math.max(map.view.unit, 16));
  store.set({ query, key, hover: null, locked: [query] });
  map.draw();
}
