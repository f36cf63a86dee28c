// Two recordings side by side, with one cursor, and the difference between them.

import { counterpart, differenceOf, otherOf, shareOf } from "./compared.js";
import { button, choice, element, refill, select } from "./element.js";
import { number } from "./format.js";
import { listenToHands } from "./gestures.js";
import { headBar } from "./headbar.js";
import { HeadMap } from "./headmap.js";
import { scaleName } from "./map.js";
import { layerOf, shownOf, subjectOf } from "./subject.js";
import { themeOf } from "./theme.js";

export function compareView(context) {
  const { store } = context;
  const parts = {
    chooser: element("form", { class: "bar" }),
    why: element("p", { class: "hint boxed", hidden: true }),
    table: element("div", { class: "changed" }),
    panels: {},
  };
  for (const [name, title] of [
    ["one", "One"],
    ["other", "The other"],
    ["difference", "One minus the other"],
  ])
    parts.panels[name] = panel(context, parts, name, title);
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
    element(
      "div",
      { class: "three" },
      Object.values(parts.panels).map((each) => each.node),
    ),
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
    zoom: (factor, x = map.view.width / 2, y = map.view.height / 2) =>
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
  drawChooser(context, parts, other);
  parts.compared = null;
  if (!other) {
    parts.why.hidden = false;
    refill(parts.why, "There is only one text yet. Type another one, or choose another model, and press Compare.");
    return;
  }
  try {
    const { values } = await context.once("compare", { one: state.shown, other: other.id });
    if (otherOf(store.get())?.id !== other.id) return;
    parts.compared = values;
    parts.why.hidden = !values.why;
    refill(parts.why, values.why ?? "");
    drawTable(context, parts);
    show(context, parts);
  } catch (error) {
    context.fail(error);
  }
}

function drawChooser(context, parts, other) {
  const { store } = context;
  const { world, shown } = store.get();
  const options = (not) =>
    world.shown.filter((each) => each.id !== not).map((each) => [each.id, `${each.id}: ${each.title}`]);
  const text = element("input", {
    type: "text",
    placeholder: "Another text",
    "aria-label": "Another text",
    class: "wide-input",
    value: "",
  });
  text.value = shownOf(store.get())?.text?.slice(0, 2000) ?? "";
  const model = select(
    "Model of the other text",
    world.models.map((each) => [each.name, each.name]),
    shownOf(store.get())?.model,
    () => {},
  );
  const add = async (event) => {
    event.preventDefault();
    try {
      const { values } = await context.asking.slowly("run", { text: text.value, model: model.value }, context.status);
      await context.refresh({ other: values.id });
    } catch (error) {
      context.fail(error);
    } finally {
      context.status("");
    }
  };
  parts.chooser.onsubmit = add;
  refill(
    parts.chooser,
    element(
      "label",
      { class: "field" },
      "One ",
      select("One", options(null), shown, (id) => store.set({ shown: Number(id) })),
    ),
    other
      ? element(
          "label",
          { class: "field" },
          "the other ",
          select("The other", options(shown), other.id, (id) => store.set({ other: Number(id) })),
        )
      : null,
    context.source.kind === "server"
      ? [text, model, element("button", { type: "submit", class: "primary" }, "Compare")]
      : null,
  );
}

/** The heads that changed most; a click shows one. */
function drawTable({ store }, { table, compared }) {
  const rows = (compared.heads ?? []).slice(0, 12);
  const names = (compared.columns ?? ["changed"])
    .filter((name) => !["layer", "head", "path", "batch", "query", "key"].includes(name))
    .filter((name) => typeof rows[0]?.[name] === "number");
  refill(
    table,
    rows.length
      ? element(
          "table",
          { class: "plain" },
          element(
            "thead",
            {},
            element(
              "tr",
              {},
              element("th", {}, "head"),
              names.map((name) => element("th", {}, name)),
            ),
          ),
          element(
            "tbody",
            {},
            rows.map((row) =>
              element(
                "tr",
                {},
                element(
                  "td",
                  {},
                  button(`${row.layer}.${row.head}`, () => store.set({ layer: row.layer, head: row.head }), {
                    class: "link",
                  }),
                ),
                names.map((name) => element("td", { "data-name": name, "data-value": row[name] }, number(row[name]))),
              ),
            ),
          ),
        )
      : null,
  );
}

async function show(context, parts) {
  const state = context.store.get();
  const other = otherOf(state);
  if (!other || !parts.compared) return;
  const { one, other: second, difference } = parts.panels;
  const about = { layer: layerOf(state).number, head: state.head };
  const there = counterpart(other, about);
  try {
    const [first, next] = await Promise.all([
      context.once("levels", { shown: state.shown, ...about }),
      context.once("levels", { shown: other.id, ...there }),
    ]);
    if (context.store.get().head !== about.head || context.store.get().layer !== about.layer) return;
    paint(context, parts);
    one.map.show(subjectOf({ ...state, hide: false }, first.values));
    second.map.show(subjectOf({ ...state, ...there, hide: false }, next.values, other.id));
    one.heading.textContent = shownOf(state).title;
    second.heading.textContent =
      there.layer === about.layer && there.head === about.head
        ? other.title
        : `${there.layer}.${there.head} of ${other.title}`;
    difference.map.show(
      parts.compared.fits ? differenceOf(state, first.values, other.id) : shareOf(state, other.id, there),
    );
    difference.heading.textContent = parts.compared.fits
      ? "One minus the other"
      : "One minus the other, as shares of their lengths";
  } catch (error) {
    context.fail(error);
  }
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
