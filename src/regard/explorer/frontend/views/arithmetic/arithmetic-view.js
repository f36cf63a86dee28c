// The Arithmetic view: every number of one weight, from the query and the key to the output.

import { button, element, replaceContent } from "../../lib/element.js";
import { formatNumber, quoteToken, tokenLabel } from "../../lib/format.js";
import { selectHead, selectTokens } from "../../state/selectors.js";
import { codeBox } from "../../widgets/code-box.js";
import { headToolbar } from "../../widgets/head-toolbar.js";
import { cellSteps } from "./cell-steps.js";

/**
 * @import { CellSteps, Context, Layer, Listener, Side, State } from "../../lib/types.js"
 * @import { CellNames } from "./cell-steps.js"
 */

/**
 * @typedef {Object} Parts
 * @property {HTMLElement} body
 * @property {HTMLElement} pair
 * @property {string} requestId
 * @property {CellSteps | null} cell the response
 * @property {number} blockSize numbers of a vector per line
 */

/** @param {Context} context */
export function arithmeticView(context) {
  /** @type {Parts} */
  const parts = {
    body: element("div", { class: "cell-steps" }),
    pair: element("div", { class: "pair-inputs" }),
    requestId: "",
    cell: null,
    blockSize: 0,
  };
  /** @type {Listener<State>} */
  const onChange = (_, changed) => {
    if (["serverState", "session", "layer", "head", "query", "key"].some((name) => changed.has(name)))
      update(context, parts);
  };
  context.subscribe(onChange);
  const observer = new ResizeObserver(() => redraw(context, parts));
  observer.observe(parts.body);
  context.end(() => observer.disconnect());
  update(context, parts);
  return element(
    "section",
    { class: "view arithmetic-view", "aria-label": "Arithmetic" },
    headToolbar(context, parts.pair),
    parts.body,
  );
}

/**
 * The default cell: the last query and the key with its largest weight.
 * @param {Context} context
 * @param {Layer} layer
 */
async function defaultCell(context, layer) {
  const { session, head } = context.store.get();
  const query = layer.num_queries - 1;
  const params = { session, layer: layer.index, heads: [head], queries: [query] };
  const { arrays } = await context.request("query_weights", params);
  const row = arrays.mean.data;
  return { query, key: row.indexOf(row.reduce((maximum, w) => Math.max(maximum, w), 0)) };
}

/**
 * @param {Context} context
 * @param {Parts} parts
 */
async function update(context, parts) {
  const { store } = context;
  const { session, layer } = selectHead(store.get());
  try {
    const { query, key, stateVersion, head } = store.get();
    if (query === null || key === null) {
      const cell = await defaultCell(context, layer);
      const state = store.get();
      const isSame = state.stateVersion === stateVersion && state.layer === layer.index && state.head === head;
      if (isSame && state.query === null && state.view === "arithmetic") store.set(cell);
      return;
    }
    const state = store.get();
    drawPairInputs(context, parts, layer);
    const params = { session: state.session, layer: layer.index, head: state.head, query, key };
    const requestId = `${state.stateVersion} ${JSON.stringify(params)}`;
    if (requestId === parts.requestId) return;
    parts.requestId = requestId;
    const { values } = await context.requestCached("cell_steps", params);
    if (parts.requestId !== requestId) return;
    context.openedCells.add(
      JSON.stringify({
        stateVersion: state.stateVersion,
        session: state.session,
        cell: [layer.index, state.head, query, key],
      }),
    );
    parts.cell = values;
    parts.blockSize = 0;
    redraw(context, parts);
    const { rowLabels, columnLabels } = selectTokens(session, layer);
    const pair = `${quoteToken(rowLabels[query])} attends to ${quoteToken(columnLabels[key])}`;
    context.announce(`${pair} with weight ${formatNumber(values.weight)}.`);
  } catch (error) {
    context.showError(error);
  }
}

/**
 * Draws the steps; vectors have as many numbers per line as fit, a power of two.
 * @param {Context} context
 * @param {Parts} parts
 */
function redraw(context, parts) {
  if (!parts.cell) return;
  const width = parts.body.clientWidth;
  const blockSize = width > 1180 ? 16 : width > 720 ? 8 : 4;
  if (blockSize === parts.blockSize) return;
  parts.blockSize = blockSize;
  replaceContent(parts.body, cellStepList(context, parts.cell, blockSize));
}

/**
 * The inputs that select the query and the key by position.
 * @param {Context} context
 * @param {{ pair: HTMLElement }} parts
 * @param {Layer} layer
 */
function drawPairInputs({ store }, { pair }, layer) {
  const state = store.get();
  const { rowLabels, columnLabels, queryOffset } = selectTokens(selectHead(state).session, layer);
  /**
   * @param {Side} name
   * @param {string} label
   * @param {number} length
   * @param {string} token
   * @param {number} offset
   */
  const positionInput = (name, label, length, token, offset) => {
    const position = (state[name] ?? 0) + offset;
    const input = element("input", {
      type: "number",
      min: offset,
      max: length - 1 + offset,
      "aria-label": label,
    });
    input.value = String(position);
    input.addEventListener("change", () =>
      store.set({ [name]: Math.max(0, Math.min(length - 1, Math.round(Number(input.value)) - offset || 0)) }),
    );
    return element("label", { class: `${name}-color field` }, `${label} `, input, element("b", {}, tokenLabel(token)));
  };
  replaceContent(
    pair,
    positionInput("query", "Query", layer.num_queries, rowLabels[state.query ?? 0], queryOffset),
    positionInput("key", "Key", layer.num_keys, columnLabels[state.key ?? 0], 0),
  );
}

/**
 * The headline, the steps in order of computation, and the code.
 * @param {Context} context
 * @param {CellSteps} cell
 * @param {number} blockSize
 */
function cellStepList(context, cell, blockSize) {
  const { session, layer } = selectHead(context.store.get());
  const { rowLabels, columnLabels } = selectTokens(session, layer);
  const names = {
    query: tokenLabel(rowLabels[cell.query]),
    key: tokenLabel(columnLabels[cell.key]),
    argmax: columnLabels[cell.argmax_key ?? -1] ?? "",
  };
  const steps = cellSteps(cell, names, blockSize);
  return [
    headline(context, cell, names),
    element(
      "ol",
      { class: "step-list" },
      steps.map(([title, formula, ...body]) =>
        element(
          "li",
          {},
          element(
            "div",
            { class: "step-title" },
            element("h3", {}, title),
            formula ? element("p", { class: "formula" }, formula) : null,
          ),
          element("div", { class: "step-values" }, body),
        ),
      ),
    ),
    codeBox(context, "The same in PyTorch", cell.code),
  ];
}

/**
 * @param {Context} context
 * @param {CellSteps} cell
 * @param {CellNames} names
 */
function headline(context, cell, names) {
  return element(
    "div",
    { class: "arithmetic-headline" },
    element(
      "p",
      {},
      "The weight of the query ",
      element("b", { class: "query-color" }, names.query),
      " on the key ",
      element("b", { class: "key-color" }, names.key),
    ),
    element("output", { class: "weight", "data-weight": cell.weight }, formatNumber(cell.weight)),
    element("p", { class: "formula" }, cell.formula?.text ?? ""),
    button("‹ Back to map", () => context.store.set({ view: "map" }), { class: "quiet-button" }),
  );
}
