// One weight, worked through: every number from the query and the key to the output.

import { codeBox } from "./codebox.js";
import { button, element, refill } from "./element.js";
import { label, number, quoted } from "./format.js";
import { headBar } from "./headbar.js";
import { layerOf, shownOf, tokensOf } from "./subject.js";
import { workedThrough } from "./sums.js";

export function arithmeticView(context) {
  const parts = { body: element("div", { class: "sums" }), pair: element("div", { class: "pair-chooser" }), asked: "" };
  const hear = (_, changed) => {
    if (["world", "shown", "layer", "head", "query", "key"].some((name) => changed.has(name))) update(context, parts);
  };
  context.listen(hear);
  const watch = new ResizeObserver(() => redraw(context, parts));
  watch.observe(parts.body);
  context.end(() => watch.disconnect());
  update(context, parts);
  return element(
    "section",
    { class: "view arithmetic-view", "aria-label": "Arithmetic" },
    headBar(context, parts.pair),
    parts.body,
  );
}

/** A cell to begin with, if none was chosen: the last query and what it looks at most. */
async function begun(context, layer) {
  const { shown, head } = context.store.get();
  const query = layer.queries - 1;
  const { arrays } = await context.ask("row", { shown, layer: layer.number, heads: [head], queries: [query] });
  const row = arrays.mean.data;
  return { query, key: row.indexOf(row.reduce((top, w) => Math.max(top, w), 0)) };
}

async function update(context, parts) {
  const { store } = context;
  const layer = layerOf(store.get());
  if (!layer) return;
  try {
    const { query, key, epoch, head } = store.get();
    if (query === null || key === null) {
      const cell = await begun(context, layer);
      const now = store.get();
      const isSame = now.epoch === epoch && now.layer === layer.number && now.head === head && now.query === null;
      if (isSame && now.view === "arithmetic") store.set(cell);
      return;
    }
    const state = store.get();
    drawPair(context, parts, layer);
    const params = { shown: state.shown, layer: layer.number, head: state.head, query, key };
    const asked = `${state.epoch} ${JSON.stringify(params)}`;
    if (asked === parts.asked) return;
    parts.asked = asked;
    const { values } = await context.once("cell", params);
    if (parts.asked !== asked) return;
    context.looked.add(
      JSON.stringify({ epoch: state.epoch, shown: state.shown, cell: [layer.number, state.head, query, key] }),
    );
    parts.cell = values;
    parts.across = 0;
    redraw(context, parts);
    const { rowLabels, columnLabels } = tokensOf(shownOf(state), layer);
    context.say(`${quoted(rowLabels[query])} looks at ${quoted(columnLabels[key])} with weight ${number(values.weight)}.`);
  } catch (error) {
    context.fail(error);
  }
}

/** As many columns as there is room for: a power of two, so that blocks end where people count. */
function redraw(context, parts) {
  if (!parts.cell) return;
  const room = parts.body.clientWidth;
  const across = room > 1180 ? 16 : room > 720 ? 8 : 4;
  if (across === parts.across) return;
  parts.across = across;
  refill(parts.body, sums(context, parts.cell, across));
}

function drawPair({ store }, { pair }, layer) {
  const state = store.get();
  const { rowLabels, columnLabels, first } = tokensOf(shownOf(state), layer);
  const box = (name, words, length, token, shift) => {
    const input = element("input", {
      type: "number",
      min: shift,
      max: length - 1 + shift,
      value: state[name] + shift,
      "aria-label": words,
    });
    input.value = state[name] + shift;
    input.addEventListener("change", () =>
      store.set({ [name]: Math.max(0, Math.min(length - 1, Math.round(Number(input.value)) - shift || 0)) }),
    );
    return element("label", { class: `of-${name} field` }, `${words} `, input, element("b", {}, label(token)));
  };
  refill(
    pair,
    box("query", "Query", layer.queries, rowLabels[state.query], first),
    box("key", "Key", layer.keys, columnLabels[state.key], 0),
  );
}

/** The steps in the order of the mathematics. */
function sums(context, cell, across) {
  const state = context.store.get();
  const layer = layerOf(state);
  const { rowLabels, columnLabels } = tokensOf(shownOf(state), layer);
  const names = {
    query: label(rowLabels[cell.query]),
    key: label(columnLabels[cell.key]),
    top: columnLabels[cell.maximum_at],
  };
  const steps = workedThrough(cell, names, across);
  return [
    headline(context, cell, names),
    element(
      "ol",
      { class: "sum-list" },
      steps
        .filter(Boolean)
        .map(([title, formula, ...body]) =>
          element(
            "li",
            {},
            element(
              "div",
              { class: "said" },
              element("h3", {}, title),
              formula ? element("p", { class: "formula" }, formula) : null,
            ),
            element("div", { class: "shown" }, body),
          ),
        ),
    ),
    codeBox(context, "The same in torch", cell.code),
  ];
}

function headline(context, cell, names) {
  return element(
    "div",
    { class: "headline" },
    element(
      "p",
      {},
      "How much of ",
      element("b", { class: "of-key" }, names.key),
      " does ",
      element("b", { class: "of-query" }, names.query),
      " take?",
    ),
    element("output", { class: "weight", "data-weight": cell.weight }, number(cell.weight)),
    element("p", { class: "formula" }, cell.formula?.text ?? ""),
    button("‹ Back to the map", () => context.store.set({ view: "map" }), { class: "quiet" }),
  );
}
