// The toolbar above a view: controls that select the head, and its kinds.

import { button, element, replaceContent, select } from "../lib/element.js";
import { headKinds, kindLabel, kindTooltip } from "../lib/head-measures.js";
import { selectHead, selectSession } from "../state/selectors.js";

/** @import { Context, Layer, Session, State, Store } from "../lib/types.js" */

/**
 * A toolbar that follows the state; `controls` are further controls of the view.
 * @param {Context} context
 * @param {...HTMLElement} controls
 */
export function headToolbar(context, ...controls) {
  const node = element("div", { class: "toolbar" });
  const headSelect = element("div", { class: "head-select" });
  const kinds = element("div", { class: "head-kinds", role: "group", "aria-label": "Kinds of this head" });
  node.append(headSelect, kinds, element("div", { class: "spacer" }), ...controls);
  const draw = () => {
    drawHeadSelect(context, headSelect);
    drawKinds(context, kinds);
  };
  context.subscribe((_, changed) => {
    if (["serverState", "session", "layer", "head"].some((name) => changed.has(name))) draw();
  });
  draw();
  return node;
}

/**
 * @param {Context} context
 * @param {HTMLElement} node
 */
function drawHeadSelect({ store }, node) {
  const state = store.get();
  if (!selectSession(state)) return;
  const { session, layer } = selectHead(state);
  /** @param {Layer} layer */
  const layerName = ({ index, is_cross_attention }) => `Layer ${index}${is_cross_attention ? " (cross)" : ""}`;
  /** @type {Array<[number, string]>} */
  const layers = session.layers.map((option) => [option.index, layerName(option)]);
  /** @type {Array<[number, string]>} */
  const heads = layer.head_indices.map((head) => [head, `Head ${head}`]);
  /** @param {string} index */
  const selectLayerIndex = (index) =>
    store.set({ layer: Number(index), ...headAfterLayerChange(session, Number(index), state.head) });
  replaceContent(
    node,
    button("‹", () => step(store, -1), { class: "quiet-button", "aria-label": "Previous head" }),
    select("Layer", layers, layer.index, selectLayerIndex, { title: layer.path }),
    select("Head", heads, state.head, (head) => store.set({ head: Number(head), lineHeads: null })),
    button("›", () => step(store, 1), { class: "quiet-button", "aria-label": "Next head" }),
  );
}

/**
 * The head with the same index in another layer; its first head if the layer has no such head.
 * @param {Session} session
 * @param {number} index
 * @param {number | null} head
 */
function headAfterLayerChange(session, index, head) {
  const indices = session.layers.find((layer) => layer.index === index)?.head_indices ?? [];
  return { head: indices.find((n) => n === head) ?? indices[0], lineHeads: null };
}

/**
 * @param {Store<State>} store
 * @param {number} by
 */
function step(store, by) {
  const state = store.get();
  /** @param {Layer} layer */
  const headsOf = (layer) => layer.head_indices.map((head) => ({ layer: layer.index, head }));
  const all = selectHead(state).session.layers.flatMap(headsOf);
  const current = all.findIndex(({ layer, head }) => layer === state.layer && head === state.head);
  store.set({ ...all[(current + by + all.length) % all.length], lineHeads: null });
}

/**
 * Shows the kinds of the head after all heads are measured.
 * @param {Context} context
 * @param {HTMLElement} node
 */
async function drawKinds(context, node) {
  const { session, layer, head, stateVersion } = context.store.get();
  replaceContent(node);
  const table = await context.headTable(session, stateVersion).catch(() => null);
  const state = context.store.get();
  if (!table || layer === null || head === null) return;
  if (state.layer !== layer || state.head !== head || state.session !== session) return;
  replaceContent(
    node,
    headKinds(table, layer, head).map(([kind, score]) => kindChip(kind, kindTooltip(kind, score))),
  );
}

/**
 * The label of a kind with a tooltip.
 * @param {string} kind
 * @param {string} title
 */
export function kindChip(kind, title) {
  return element("span", { class: "chip", title, "data-kind": kind }, kindLabel(kind));
}
