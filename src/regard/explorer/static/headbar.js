// The line above a view that says which head is looked at, and lets one choose another.

import { button, element, refill, select } from "./element.js";
import { layerOf, shownOf } from "./subject.js";

/** A bar that follows the state; `more` are further controls of the view. */
export function headBar(context, ...more) {
  const node = element("div", { class: "bar" });
  const chooser = element("div", { class: "chooser" });
  const kinds = element("div", { class: "kinds", "aria-label": "What this head does" });
  node.append(chooser, kinds, element("div", { class: "grow" }), ...more);
  const draw = () => {
    drawChooser(context, chooser);
    drawKinds(context, kinds);
  };
  context.listen((_, changed) => {
    if (["world", "shown", "layer", "head"].some((name) => changed.has(name))) draw();
  });
  draw();
  return node;
}

function drawChooser({ store }, node) {
  const state = store.get();
  const shown = shownOf(state);
  if (!shown) return;
  const layer = layerOf(state);
  const layers = shown.layers.map((each) => [each.number, `Layer ${each.number}${each.crosses ? " (across)" : ""}`]);
  const heads = layer.heads.map((head) => [head, `Head ${head}`]);
  const choose = (number) => store.set({ layer: Number(number), ...kept(shown, Number(number), state.head) });
  refill(
    node,
    button("‹", () => step(store, -1), { class: "quiet", "aria-label": "The head before" }),
    select("Layer", layers, layer.number, choose, { title: layer.path }),
    select("Head", heads, state.head, (head) => store.set({ head: Number(head), heads: null })),
    button("›", () => step(store, 1), { class: "quiet", "aria-label": "The next head" }),
  );
}

function kept(shown, number, head) {
  const layer = shown.layers.find((each) => each.number === number);
  return { head: layer.heads.includes(head) ? head : layer.heads[0], heads: null };
}

function step(store, by) {
  const state = store.get();
  const all = shownOf(state).layers.flatMap((layer) => layer.heads.map((head) => ({ layer: layer.number, head })));
  const at = all.findIndex((each) => each.layer === state.layer && each.head === state.head);
  store.set({ ...all[(at + by + all.length) % all.length], heads: null });
}

/** The kinds of the head, once all heads are measured. */
async function drawKinds(context, node) {
  const { shown, layer, head, epoch } = context.store.get();
  refill(node);
  const found = await context.headsOf(shown, epoch).catch(() => null);
  const now = context.store.get();
  if (!found || now.layer !== layer || now.head !== head || now.shown !== shown) return;
  refill(
    node,
    kindsOf(found, layer, head).map(([kind, score]) =>
      chip(kind, `${Math.round(100 * score)} % of its weight: ${found.kinds[kind]}`),
    ),
  );
}

const TELLING = [
  "induction",
  "duplicate",
  "previous",
  "next",
  "first",
  "separator",
  "window",
  "self",
  "alignment",
  "positional",
];

/** The kinds that a head is of, those first that tell most: [name, share]. */
export function kindsOf(found, layer, head) {
  const mine = Object.entries(found.found).flatMap(([kind, list]) =>
    list.filter(([l, h]) => l === layer && h === head).map((each) => [kind, each[2]]),
  );
  return mine.sort((a, b) => TELLING.indexOf(a[0]) - TELLING.indexOf(b[0]));
}

/** A small label with a sentence behind it. */
export function chip(text, title) {
  return element("span", { class: "chip", title, "data-kind": text }, text);
}
