// The Overview: thumbnails of all heads, ordered by layer or by a measure, filtered by kind.

import { rampGradient, colorRamp } from "../../lib/color/palettes.js";
import { button, segmentedControl, element, replaceContent, select } from "../../lib/element.js";
import { kindLabel, measureDescription, measureTitle, measuresIn } from "../../lib/head-measures.js";
import { headCard, labelHeadCard, paintThumbnail } from "./head-card.js";
import { runModel } from "../../app/run-model.js";
import { sqrtScale } from "../../lib/color/color-scale.js";
import { selectSession } from "../../state/selectors.js";
import { effectiveTheme } from "../../state/theme.js";

const THUMBNAIL_SIZE = 64; // cells per side

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
  const cards = new Map();
  const parts = { controls, legend, grid, measureNote, cards, table: null, sampledRows: null };
  const begin = () => {
    cards.clear();
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

/** The introduction, with example texts. */
function introduction(context) {
  const { serverState } = context.store.get();
  const examples = context.source.kind === "server" ? (serverState.examples ?? []) : [];
  const node = element(
    "div",
    { class: "intro" },
    element(
      "p",
      {},
      "Each square is one attention head. Rows are queries, columns are keys; ",
      "the stronger the color, the larger the weight. ",
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
          button(title, () => runModel(context, text, model).catch(context.showError), {
            class: "link",
            title: `Runs the model ${model} on: ${text}`,
          }),
        ),
      ),
    );
  }
  return node;
}

function makeCards({ store }, { cards }) {
  const state = store.get();
  for (const layer of selectSession(state).layers) {
    for (const head of layer.head_indices) cards.set(`${layer.index} ${head}`, headCard(store, layer, head));
  }
}

/** Requests the thumbnails layer by layer, and the table of measures. */
async function load(context, parts) {
  const { session, stateVersion } = context.store.get();
  const isStale = () => context.store.get().stateVersion !== stateVersion || context.store.get().view !== "overview";
  const table = context.headTable(session, stateVersion);
  table.catch(() => {}); // the error is shown after the thumbnails, below
  for (const layer of selectSession(context.store.get()).layers) {
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

/** Paints the thumbnails of all layers, or of one. */
function repaint({ store }, { cards }, onlyLayer = null) {
  const state = store.get();
  const ramp = colorRamp("ink", effectiveTheme(state));
  for (const { canvas, thumbnail, layer } of cards.values()) {
    if (thumbnail && (onlyLayer === null || layer.index === onlyLayer))
      paintThumbnail(canvas, thumbnail, state.pooling, ramp);
  }
}

/** Orders and filters the cards, and labels them with measures and kinds. */
function arrange(context, parts) {
  const { store } = context;
  const state = store.get();
  drawControls(context, parts);
  const rows = new Map((parts.table?.rows ?? []).map((row) => [`${row.layer} ${row.head}`, row]));
  const values = [...rows.values()].map((row) => row[state.measure]).filter((x) => x !== null && x !== undefined);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const ramp = colorRamp("ink", effectiveTheme(state));
  const entries = [...parts.cards.entries()].map(([name, card]) => ({
    card,
    value: rows.get(name)?.[state.measure] ?? null,
  }));
  for (const { card, value } of entries)
    labelHeadCard(card, value, (value - low) / (high - low || 1), ramp, parts.table, state.measure);
  const filtered =
    state.kindFilter && parts.table
      ? entries.filter(({ card }) =>
          (parts.table.heads_by_kind[state.kindFilter] ?? []).some(
            ([l, h]) => l === card.layer.index && h === card.head,
          ),
        )
      : entries;
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

/** The legend of all thumbnails: weights from 0 to 1 on a square-root scale. */
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

function layOutCards({ grid }, state, entries) {
  const isByLayer = state.headOrder === "layer";
  const sign = state.headOrder === "smallest" ? 1 : -1;
  const sorted = isByLayer
    ? entries
    : entries.slice().sort((a, b) => sign * ((a.value ?? -sign * Infinity) - (b.value ?? -sign * Infinity)));
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
  const { texts } = selectSession(state);
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

function layerTextNames(texts, layer) {
  return layer.query_text === layer.key_text
    ? texts[layer.query_text].name
    : `${texts[layer.query_text].name} → ${texts[layer.key_text].name}`;
}

function drawControls({ store }, { controls, table }) {
  const state = store.get();
  const measures = table ? measuresIn(table.columns) : [state.measure];
  const isListed = ([kind, heads]) => heads.length || kind === state.kindFilter;
  const kinds = table ? Object.entries(table.heads_by_kind).filter(isListed) : [];
  replaceContent(
    controls,
    element(
      "label",
      { class: "field" },
      "Measure ",
      select(
        "Measure",
        measures.map((name) => [name, measureTitle(name)]),
        state.measure,
        (measure) => store.set({ measure }),
      ),
    ),
    segmentedControl(
      "Order",
      [
        ["layer", "By layer"],
        ["largest", "Largest first"],
        ["smallest", "Smallest first"],
      ],
      state.headOrder,
      (headOrder) => store.set({ headOrder }),
    ),
    segmentedControl(
      "Pooling",
      [
        ["mean", "Mean", "A cell of a thumbnail shows the mean of its weights"],
        ["max", "Max", "A cell of a thumbnail shows the largest of its weights"],
      ],
      state.pooling,
      (pooling) => store.set({ pooling }),
    ),
    element("div", { class: "spacer" }),
    kinds.length
      ? element(
          "div",
          { class: "chip-group", role: "group", "aria-label": "Kinds of heads" },
          [["", null], ...kinds].map(([kind, heads]) =>
            button(kind ? `${kindLabel(kind)} ${heads.length}` : "all", () => store.set({ kindFilter: kind }), {
              class: "chip",
              "aria-pressed": String(state.kindFilter === kind),
              title: kind ? `${measureTitle(kind)}: ${measureDescription(kind)}` : "All heads",
              "data-kind": kind,
            }),
          ),
        )
      : null,
  );
}
