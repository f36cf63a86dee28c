// The Overview: thumbnails of all heads, ordered by layer or by a measure, filtered by kind.

import { sqrtScale } from "../../lib/color/color-scale.js";
import { colorRamp, rampGradient } from "../../lib/color/palettes.js";
import { button, element, replaceContent } from "../../lib/element.js";
import { measureDescription, measureTitle } from "../../lib/head-measures.js";
import { selectHead } from "../../state/selectors.js";
import { effectiveTheme } from "../../state/theme.js";
import { isOfKind, sortEntries } from "./card-order.js";
import { headCard, labelHeadCard, paintThumbnail } from "./head-card.js";
import { drawControls } from "./overview-controls.js";

/**
 * @import { Context, HeadTable, Layer, Ramp, State, Text } from "../../lib/types.js"
 * @import { HeadCard } from "./head-card.js"
 */

const THUMBNAIL_SIZE = 64; // cells per side

/**
 * @typedef {{card: HeadCard, value: number | null}} CardEntry
 * @typedef {Object} Parts
 * @property {HTMLElement} controls
 * @property {HTMLElement} grid
 * @property {HTMLElement} measureNote
 * @property {HTMLElement} legend
 * @property {Map<string, HeadCard>} cards by layer and head
 * @property {HeadTable | null} table
 * @property {number | null} sampledRows
 */

/** @param {Context} context */
export function overviewView(context) {
  const controls = element("div", { class: "toolbar" });
  const grid = element("div", { class: "head-grid" });
  const measureNote = element("p", { class: "hint" });
  const legend = element("div");
  const node = element(
    "section",
    { class: "view overview", "aria-label": "Overview" },
    introduction(context),
    controls,
    legend,
    grid,
    measureNote,
  );
  /** @type {Parts} */
  const parts = { controls, legend, grid, measureNote, cards: new Map(), table: null, sampledRows: null };
  const begin = () => {
    parts.cards.clear();
    parts.table = null;
    makeCards(context, parts);
    arrange(context, parts);
    load(context, parts);
  };
  context.subscribe((_, changed) => {
    if (["serverState", "session"].some((name) => changed.has(name))) begin();
    else if (["measure", "headOrder", "kindFilter"].some((name) => changed.has(name))) arrange(context, parts);
    else if (["theme", "isDarkEnvironment", "pooling"].some((name) => changed.has(name))) repaint(context, parts);
  });
  begin();
  return node;
}

/**
 * The introduction, with example texts.
 * @param {Context} context
 */
function introduction(context) {
  const { serverState } = context.store.get();
  const examples = context.source.kind === "server" ? (serverState?.examples ?? []) : [];
  const node = element(
    "div",
    { class: "intro" },
    element(
      "p",
      {},
      "Each square is one attention head. Rows are queries, columns are keys; ",
      "the stronger the color, the larger the weight. ",
      "Weights show where a head reads, not what the model uses. ",
      element("strong", {}, "Click a head to open its map."),
    ),
  );
  if (examples.length) {
    node.append(
      element(
        "p",
        { class: "example-links" },
        "Examples: ",
        examples.map(({ title, text, model }) =>
          button(title, () => context.runModel(text, model).catch(context.showError), {
            class: "link",
            title: `Runs the model ${model} on: ${text}`,
          }),
        ),
      ),
    );
  }
  return node;
}

/**
 * @param {Context} context
 * @param {Parts} parts
 */
function makeCards({ store }, { cards }) {
  const state = store.get();
  for (const layer of selectHead(state).session.layers) {
    for (const head of layer.head_indices) cards.set(`${layer.index} ${head}`, headCard(store, layer, head));
  }
}

/**
 * Requests the thumbnails layer by layer, and the table of measures.
 * @param {Context} context
 * @param {Parts} parts
 */
async function load(context, parts) {
  const { session, stateVersion } = context.store.get();
  const isStale = () => context.store.get().stateVersion !== stateVersion || context.store.get().view !== "overview";
  const table = context.headTable(session, stateVersion);
  table.catch(() => {}); // the error is shown after the thumbnails, below
  for (const layer of selectHead(context.store.get()).session.layers) {
    try {
      const { values, arrays } = await context.requestCached("thumbnails", {
        session,
        layer: layer.index,
        size: THUMBNAIL_SIZE,
      });
      if (isStale()) return;
      parts.sampledRows = values.sampled_rows ?? null;
      (values.heads ?? layer.head_indices).forEach((head, n) => {
        const card = parts.cards.get(`${layer.index} ${head}`);
        if (card) card.thumbnail = { arrays, n };
      });
      repaint(context, parts, layer.index);
    } catch (error) {
      context.showError(error);
    }
  }
  try {
    parts.table = await table;
    if (!isStale()) arrange(context, parts);
  } catch (error) {
    context.showError(error);
  }
}

/**
 * Paints the thumbnails of all layers, or of one.
 * @param {Context} context
 * @param {Parts} parts
 * @param {number | null} [onlyLayer]
 */
function repaint({ store }, { cards }, onlyLayer = null) {
  const state = store.get();
  const ramp = colorRamp("ink", effectiveTheme(state));
  for (const { canvas, thumbnail, layer } of cards.values()) {
    if (thumbnail && (onlyLayer === null || layer.index === onlyLayer))
      paintThumbnail(canvas, thumbnail, state.pooling, ramp);
  }
}

/**
 * Orders and filters the cards, and labels them with measures and kinds.
 * @param {Context} context
 * @param {Parts} parts
 */
function arrange(context, parts) {
  const { store } = context;
  const state = store.get();
  drawControls(context, parts.controls, parts.table);
  const rows = new Map((parts.table?.rows ?? []).map((row) => [`${row.layer} ${row.head}`, row]));
  const values = [...rows.values()].flatMap((row) => row[state.measure] ?? []);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const ramp = colorRamp("ink", effectiveTheme(state));
  const entries = [...parts.cards.entries()].map(([name, card]) => ({
    card,
    value: rows.get(name)?.[state.measure] ?? null,
  }));
  for (const { card, value } of entries)
    labelHeadCard(card, value, ((value ?? low) - low) / (high - low || 1), ramp, parts.table, state.measure);
  const filtered = entries.filter(({ card }) => isOfKind(parts.table, state.kindFilter, card.layer.index, card.head));
  layOutCards(parts, state, filtered);
  const sampling = parts.sampledRows
    ? ` The thumbnails of this long text use ${parts.sampledRows} sampled rows per cell.`
    : "";
  replaceContent(parts.legend, weightLegend(ramp));
  replaceContent(
    parts.measureNote,
    parts.table ? `${measureTitle(state.measure)}: ${measureDescription(state.measure)}.` : "Measuring all heads…",
    sampling,
  );
}

/**
 * The legend of all thumbnails: weights from 0 to 1 on a square-root scale.
 * @param {Ramp} ramp
 */
function weightLegend(ramp) {
  const bar = element("span", { class: "color-ramp", "aria-hidden": "true" });
  bar.style.background = rampGradient(ramp, sqrtScale);
  const note = "weight, on a square-root color scale, the same scale for every head";
  return element(
    "div",
    { class: "legend weight-legend hint" },
    "0",
    bar,
    "1",
    element("span", { class: "level-note" }, note),
  );
}

/**
 * @param {Parts} parts
 * @param {State} state
 * @param {CardEntry[]} entries
 */
function layOutCards({ grid }, state, entries) {
  const isByLayer = state.headOrder === "layer";
  const sorted = sortEntries(entries, state.headOrder);
  if (!isByLayer || state.kindFilter) {
    grid.className = "head-grid head-ranking";
    replaceContent(
      grid,
      sorted.length
        ? sorted.map(({ card }) => card.node)
        : element("p", { class: "empty-state" }, "No heads of this kind for this text."),
    );
    return;
  }
  grid.className = "head-grid";
  const layers = [...new Set(sorted.map(({ card }) => card.layer))];
  const { texts } = selectHead(state).session;
  replaceContent(
    grid,
    layers.map((layer) =>
      element(
        "div",
        { class: "layer-row" },
        element(
          "h2",
          { title: layer.path },
          `Layer ${layer.index}`,
          texts.length > 1 ? element("small", {}, layerTextNames(texts, layer)) : null,
        ),
        element(
          "div",
          { class: "head-row" },
          sorted.filter(({ card }) => card.layer === layer).map(({ card }) => card.node),
        ),
      ),
    ),
  );
}

/**
 * @param {Text[]} texts
 * @param {Layer} layer
 */
function layerTextNames(texts, layer) {
  return layer.query_text === layer.key_text
    ? texts[layer.query_text].name
    : `${texts[layer.query_text].name} → ${texts[layer.key_text].name}`;
}
