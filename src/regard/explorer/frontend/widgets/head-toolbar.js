// The toolbar above a view: controls that select the head, and its kinds.

import { button, element, replaceContent, select } from "../lib/element.js";
import { kindLabel, kindTooltip } from "../lib/head-measures.js";
import { selectLayer, selectSession } from "../state/selectors.js";

/** A toolbar that follows the state; `controls` are further controls of the view. */
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

function drawHeadSelect({ store }, node) {
  const state = store.get();
  const session = selectSession(state);
  if (!session) return;
  const layer = selectLayer(state);
  const layerName = ({ index, is_cross_attention }) => `Layer ${index}${is_cross_attention ? " (cross)" : ""}`;
  const layers = session.layers.map((option) => [option.index, layerName(option)]);
  const heads = layer.head_indices.map((head) => [head, `Head ${head}`]);
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

function headAfterLayerChange(session, index, head) {
  const layer = session.layers.find((candidate) => candidate.index === index);
  return { head: layer.head_indices.includes(head) ? head : layer.head_indices[0], lineHeads: null };
}

function step(store, by) {
  const state = store.get();
  const headsOf = (layer) => layer.head_indices.map((head) => ({ layer: layer.index, head }));
  const all = selectSession(state).layers.flatMap(headsOf);
  const current = all.findIndex(({ layer, head }) => layer === state.layer && head === state.head);
  store.set({ ...all[(current + by + all.length) % all.length], lineHeads: null });
}

/** Shows the kinds of the head after all heads are measured. */
async function drawKinds(context, node) {
  const { session, layer, head, stateVersion } = context.store.get();
  replaceContent(node);
  const table = await context.headTable(session, stateVersion).catch(() => null);
  const state = context.store.get();
  if (!table || state.layer !== layer || state.head !== head || state.session !== session) return;
  replaceContent(
    node,
    headKinds(table, layer, head).map(([kind, score]) => kindChip(kind, kindTooltip(kind, score))),
  );
}

const KIND_PRIORITY = [
  "induction",
  "duplicate",
  "previous",
  "next",
  "first_token",
  "separator",
  "window",
  "self",
  "alignment",
  "positional",
];

/** The kinds of a head, the most specific first: [name, score]. */
export function headKinds(table, layer, head) {
  const kinds = Object.entries(table.heads_by_kind).flatMap(([kind, heads]) =>
    heads.filter(([l, h]) => l === layer && h === head).map(([, , score]) => [kind, score]),
  );
  return kinds.sort((a, b) => KIND_PRIORITY.indexOf(a[0]) - KIND_PRIORITY.indexOf(b[0]));
}

/** The label of a kind with a tooltip. */
export function kindChip(kind, title) {
  return element("span", { class: "chip", title, "data-kind": kind }, kindLabel(kind));
}
