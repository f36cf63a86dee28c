// All heads as small maps: by layer or by a measure, of one kind or all. A click opens a head.

import { css, ramp } from "./colour.js";
import { button, choice, element, refill, select } from "./element.js";
import { card, labelCard, paintCard } from "./headcard.js";
import { MEASURES, measureTitle, measuresIn } from "./measures.js";
import { run } from "./running.js";
import { rootShare } from "./scale.js";
import { shownOf } from "./subject.js";
import { themeOf } from "./theme.js";

const SIZE = 64; // cells of a small map
const LEGEND_STOPS = 24;

export function overviewView(context) {
  const controls = element("div", { class: "bar" });
  const grid = element("div", { class: "heads" });
  const legend = element("p", { class: "hint" });
  const scale = element("div");
  const node = element(
    "section",
    { class: "view overview", "aria-label": "Overview" },
    lead(context),
    controls,
    scale,
    grid,
    legend,
  );
  const cards = new Map();
  const parts = { controls, scale, grid, legend, cards, table: null, rows: null };
  const begin = () => {
    cards.clear();
    parts.table = null;
    makeCards(context, parts);
    arrange(context, parts);
    load(context, parts);
  };
  context.listen((_, changed) => {
    if (["world", "shown"].some((name) => changed.has(name))) begin();
    else if (["measure", "order", "kind"].some((name) => changed.has(name))) arrange(context, parts);
    else if (["theme", "dusk", "pool"].some((name) => changed.has(name))) repaint(context, parts);
  });
  begin();
  return node;
}

/** What a newcomer reads first, with sentences to try. */
function lead(context) {
  const { world } = context.store.get();
  const tries = context.source.kind === "server" ? (world.examples ?? []) : [];
  const node = element(
    "div",
    { class: "lead" },
    element(
      "p",
      {},
      "Each square is one head: a row for every token that looks, a column for every token that it may look at; the stronger the color, the larger the weight, on one scale for all heads. ",
      element("strong", {}, "Open one to follow it down to single numbers."),
    ),
  );
  if (tries.length) {
    node.append(
      element(
        "p",
        { class: "tries" },
        "Try ",
        tries.map(({ title, text, model }) =>
          button(title, () => run(context, text, model).catch(context.fail), { class: "link", title: text }),
        ),
      ),
    );
  }
  return node;
}

function makeCards({ store }, { cards }) {
  const state = store.get();
  for (const layer of shownOf(state).layers) {
    for (const head of layer.heads) cards.set(`${layer.number} ${head}`, card(store, layer, head));
  }
}

/** Asks for small maps layer by layer, and for the table of measures. */
async function load(context, parts) {
  const { shown, epoch } = context.store.get();
  const isOld = () => context.store.get().epoch !== epoch || context.store.get().view !== "overview";
  const table = context.headsOf(shown, epoch);
  table.catch(() => {}); // it is told below, after the small maps
  for (const layer of shownOf(context.store.get()).layers) {
    try {
      const { values, arrays } = await context.once("thumbnails", { shown, layer: layer.number, size: SIZE });
      if (isOld()) return;
      parts.rows = values.rows ?? null;
      (values.heads ?? layer.heads).forEach((head, n) => {
        const found = parts.cards.get(`${layer.number} ${head}`);
        if (found) found.picture = { arrays, n };
      });
      repaint(context, parts, layer.number);
    } catch (error) {
      context.fail(error);
    }
  }
  try {
    parts.table = await table;
    if (!isOld()) arrange(context, parts);
  } catch (error) {
    context.fail(error);
  }
}

function repaint({ store }, { cards }, only = null) {
  const state = store.get();
  const colours = ramp("ink", themeOf(state));
  for (const { canvas, picture, layer } of cards.values()) {
    if (picture && (only === null || layer.number === only)) paintCard(canvas, picture, state.pool, colours);
  }
}

/** Puts the cards in order, with their numbers and kinds. */
function arrange(context, parts) {
  const { store } = context;
  const state = store.get();
  drawControls(context, parts);
  const rows = new Map((parts.table?.rows ?? []).map((row) => [`${row.layer} ${row.head}`, row]));
  const numbers = [...rows.values()].map((row) => row[state.measure]).filter((x) => x !== null && x !== undefined);
  const [low, high] = [Math.min(...numbers), Math.max(...numbers)];
  const colours = ramp("ink", themeOf(state));
  const list = [...parts.cards.entries()].map(([name, each]) => ({
    each,
    value: rows.get(name)?.[state.measure] ?? null,
  }));
  for (const { each, value } of list)
    labelCard(each, value, (value - low) / (high - low || 1), colours, parts.table, state.measure);
  const wanted =
    state.kind && parts.table
      ? list.filter(({ each }) =>
          (parts.table.found[state.kind] ?? []).some(([l, h]) => l === each.layer.number && h === each.head),
        )
      : list;
  place(parts, state, wanted);
  const words = MEASURES[state.measure]?.[1] ?? "";
  const drawn = parts.rows ? ` A cell of these small maps is made from ${parts.rows} of its rows.` : "";
  refill(parts.scale, rootLegend(colours));
  refill(
    parts.legend,
    parts.table ? `${measureTitle(state.measure)}: ${words}.` : "Every head is being measured …",
    drawn,
  );
}

/** The one scale of all small maps: colors for weights from 0 to 1, by their roots. */
function rootLegend(colours) {
  const bar = element("span", { class: "ramp", "aria-hidden": "true" });
  const stops = Array.from({ length: LEGEND_STOPS }, (_, n) => n / (LEGEND_STOPS - 1));
  bar.style.background = `linear-gradient(to right, ${stops.map((w) => css(colours, rootShare(w))).join(", ")})`;
  const words = "weights from 0 to 1 by their root, the same scale for every head";
  return element("div", { class: "legend root-legend hint" }, "0", bar, "1", element("span", { class: "level" }, words));
}

function place({ grid }, state, list) {
  const byPlace = state.order === "place";
  const sign = state.order === "smallest" ? 1 : -1;
  const sorted = byPlace
    ? list
    : list.slice().sort((a, b) => sign * ((a.value ?? -sign * Infinity) - (b.value ?? -sign * Infinity)));
  if (!byPlace || state.kind) {
    grid.className = "heads ranked";
    refill(
      grid,
      sorted.length
        ? sorted.map(({ each }) => each.node)
        : element("p", { class: "empty" }, "No head of this text is of that kind."),
    );
    return;
  }
  grid.className = "heads";
  const layers = [...new Set(sorted.map(({ each }) => each.layer))];
  const { texts } = shownOf(state);
  refill(
    grid,
    layers.map((layer) =>
      element(
        "div",
        { class: "layer" },
        element(
          "h2",
          { title: layer.path },
          `Layer ${layer.number}`,
          texts.length > 1 ? element("small", {}, about(texts, layer)) : null,
        ),
        element(
          "div",
          { class: "row" },
          sorted.filter(({ each }) => each.layer === layer).map(({ each }) => each.node),
        ),
      ),
    ),
  );
}

function about(texts, layer) {
  return layer.query_text === layer.key_text
    ? texts[layer.query_text].name
    : `${texts[layer.query_text].name} → ${texts[layer.key_text].name}`;
}

function drawControls({ store }, { controls, table }) {
  const state = store.get();
  const measures = table ? measuresIn(table.columns) : [state.measure];
  const kinds = table ? Object.entries(table.found).filter(([, list]) => list.length) : [];
  refill(
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
    choice(
      "Order",
      [
        ["place", "By layer"],
        ["largest", "Largest first"],
        ["smallest", "Smallest first"],
      ],
      state.order,
      (order) => store.set({ order }),
    ),
    choice(
      "Cells",
      [
        ["mean", "Mean", "each square of a small map is the mean of its weights"],
        ["max", "Max", "the largest of its weights"],
      ],
      state.pool,
      (pool) => store.set({ pool }),
    ),
    element("div", { class: "grow" }),
    kinds.length
      ? element(
          "div",
          { class: "filter", role: "group", "aria-label": "Kinds of heads" },
          [["", null], ...kinds].map(([kind, list]) =>
            button(kind ? `${kind} ${list.length}` : "all", () => store.set({ kind }), {
              class: "chip",
              "aria-pressed": String(state.kind === kind),
              title: kind ? table.kinds[kind] : "All heads",
              "data-kind": kind,
            }),
          ),
        )
      : null,
  );
}
