// Two recordings side by side, with one cursor, and the difference between them.

import { changedTable } from "./changedtable.js";
import { drawPair } from "./comparechooser.js";
import { counterpart, differenceOf, otherOf, shareOf } from "./compared.js";
import { choice, element, refill } from "./element.js";
import { number } from "./format.js";
import { listenToHands } from "./gestures.js";
import { headBar } from "./headbar.js";
import { HeadMap } from "./headmap.js";
import { scaleName } from "./map.js";
import { layerOf, shownOf, subjectOf } from "./subject.js";
import { themeOf } from "./theme.js";

const ONLY_ONE = {
  server: "There is only one text yet. Type another one, or choose another model, and press Compare.",
  widget: "There is only one recording here. To compare two, use regard look, or tape.compare(other).",
  file: "This file holds one text. To compare two, use regard look.",
};

export function compareView(context) {
  const { store } = context;
  const parts = {
    chooser: element("form", { class: "bar" }),
    why: element("p", { class: "hint boxed", hidden: true }),
    table: element("div", { class: "changed" }),
    maps: element("div", { class: "three" }),
    panels: {},
    compared: null,
    asked: 0,
  };
  for (const [name, title] of [
    ["one", "One"],
    ["other", "The other"],
    ["difference", "One minus the other"],
  ])
    parts.panels[name] = panel(context, parts, name, title);
  parts.maps.append(...Object.values(parts.panels).map((each) => each.node));
  const pooling = choice(
    "Pooling",
    [
      ["mean", "Mean"],
      ["max", "Max"],
    ],
    store.get().pool,
    (pool) => store.set({ pool }),
  );
  context.listen((_, changed) => {
    const has = (...names) => names.some((name) => changed.has(name));
    if (has("world", "shown", "other")) begin(context, parts);
    else if (has("layer", "head")) show(context, parts);
    if (has("pool", "theme", "dusk")) paint(context, parts);
    if (has("hover")) mark(context, parts);
  });
  context.end(() => Object.values(parts.panels).forEach(({ map }) => map.leave()));
  begin(context, parts);
  return element(
    "section",
    { class: "view compare-view", "aria-label": "Compare" },
    headBar(context, pooling),
    parts.chooser,
    parts.why,
    parts.maps,
    parts.table,
  );
}

function panel(context, parts, name, title) {
  const canvas = element("canvas", { class: "map", tabindex: 0, role: "img", "aria-label": title });
  const map = new HeadMap(canvas, context.tiles, { failed: context.fail, changed: () => tell(parts) });
  const heading = element("h3", {}, title);
  const value = element("output", { class: "value", "data-of": name });
  const all = () => Object.values(parts.panels).map((each) => each.map);
  const isSame = () => name !== "difference" || parts.compared?.fits; // cells of shares are not pairs of tokens
  const together = (change) =>
    all().forEach((each) => {
      change(each.view);
      each.draw();
    });
  listenToHands(canvas, {
    zoom: (factor, x = map.left + map.view.width / 2, y = map.top + map.view.height / 2) =>
      together((view) => view.zoom(factor, x - map.left, y - map.top)),
    pan: (x, y) => together((view) => view.pan(x, y)),
    fit: () => together((view) => view.fit()),
    point: (x, y) => {
      if (isSame()) context.store.set({ hover: map.cellAt(x, y) });
    },
    pick: (x, y) => {
      const cell = map.cellAt(x, y);
      if (cell) context.store.set(cell);
    },
    open: () => {},
    step: (down, right) => {
      const at = context.store.get().hover ?? { query: 0, key: 0 };
      const inside = (n, length) => Math.max(0, Math.min(length - 1, n));
      context.store.set({
        hover: { query: inside(at.query + down, map.view.queries), key: inside(at.key + right, map.view.keys) },
      });
    },
  });
  return {
    node: element("figure", { class: "panel", "data-panel": name }, element("figcaption", {}, heading, value), canvas),
    map,
    heading,
    value,
  };
}

async function begin(context, parts) {
  const { store } = context;
  const state = store.get();
  const other = otherOf(state);
  drawPair(context, parts.chooser, other);
  parts.compared = null;
  parts.why.hidden = Boolean(other);
  parts.maps.hidden = !other;
  if (!other) return refill(parts.why, ONLY_ONE[context.source.kind]);
  try {
    const { values } = await context.once("compare", { one: state.shown, other: other.id });
    const now = store.get();
    if (now.epoch !== state.epoch || now.shown !== state.shown || otherOf(now)?.id !== other.id) return undefined;
    parts.compared = values;
    parts.why.hidden = !values.why;
    refill(parts.why, values.why ?? "");
    refill(parts.table, changedTable(context, values));
    return show(context, parts);
  } catch (error) {
    return context.fail(error);
  }
}

async function show(context, parts) {
  const state = context.store.get();
  const other = otherOf(state);
  if (!other || !parts.compared) return;
  parts.asked += 1;
  const { asked, compared } = parts;
  const about = { layer: layerOf(state).number, head: state.head };
  const there = counterpart(other, about);
  try {
    const [first, next] = await Promise.all([
      context.once("levels", { shown: state.shown, ...about }),
      context.once("levels", { shown: other.id, ...there }),
    ]);
    if (asked !== parts.asked || compared !== parts.compared) return;
    paint(context, parts);
    showMaps(state, other, there, [first.values, next.values], parts);
  } catch (error) {
    context.fail(error);
  }
}

function showMaps(state, other, there, [first, next], { panels, compared }) {
  const { one, other: second, difference } = panels;
  one.map.show(subjectOf({ ...state, hide: false }, first));
  second.map.show(subjectOf({ ...state, ...there, hide: false }, next, other.id));
  one.heading.textContent = shownOf(state).title;
  const isSame = there.layer === layerOf(state).number && there.head === state.head;
  second.heading.textContent = isSame ? other.title : `${there.layer}.${there.head} of ${other.title}`;
  difference.map.show(compared.fits ? differenceOf(state, first, other.id) : shareOf(state, other.id, there));
  difference.heading.textContent = compared.fits
    ? "One minus the other"
    : "One minus the other, as shares of their lengths";
}

function paint({ store }, { panels }) {
  const state = store.get();
  for (const { map } of Object.values(panels))
    map.paint({ pool: state.pool, scale: scaleName(state), palette: "ink", theme: themeOf(state) });
}

function mark({ store }, { panels, compared }) {
  const { hover } = store.get();
  for (const [name, { map }] of Object.entries(panels)) {
    const isInside = hover && hover.query < map.view.queries && hover.key < map.view.keys;
    map.mark({ hover: isInside && (name !== "difference" || compared?.fits) ? hover : null });
  }
}

function tell({ panels }) {
  for (const { map, value } of Object.values(panels)) {
    const { hover } = map.marks;
    const found = hover && map.subject ? map.valueAt(hover.query, hover.key) : null;
    value.textContent = found ? number(found.value) : "";
    if (found) value.dataset.value = found.value;
  }
}
