// Lines from queries to the keys they look at, for some heads at a time.

import { headColour } from "./colour.js";
import { button, drawn, element, refill, slider } from "./element.js";
import { label, number, percent } from "./format.js";
import { headBar } from "./headbar.js";
import { layerOf, shownOf, tokensOf } from "./subject.js";
import { themeOf } from "./theme.js";

const [LOW, TALL] = [21, 28]; // pixels a token, at least and at most
const WIDTH = 1000; // of the drawing, in its own units
const [LEFT, RIGHT] = [330, 670]; // where lines begin and end
const LETTERS = 22;

export function linesView(context) {
  const { store } = context;
  const parts = {
    heads: element("div", { class: "filter", role: "group", "aria-label": "Heads whose lines are drawn" }),
    stage: element("div", {
      class: "lines-stage",
      tabindex: 0,
      "aria-label": "Lines from queries, left, to keys, right. Up and down move through the text.",
    }),
    note: element("p", { class: "hint" }),
    scroll: element("div"),
    answer: null,
    asked: "",
    range: "",
    slider: null,
  };
  const mass = slider(
    "Mass",
    [0.05, 1, 0.05],
    store.get().mass,
    (x) => percent(x),
    (value) => store.set({ mass: value }),
  );
  mass.title = "The largest weights of each query, until they have this share of the row together";
  parts.stage.addEventListener(
    "wheel",
    (event) => {
      event.preventDefault();
      move(context, parts, Math.sign(event.deltaY) * 3);
    },
    { passive: false },
  );
  parts.stage.addEventListener("keydown", (event) => {
    const by = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10 }[event.key];
    if (by) {
      event.preventDefault();
      move(context, parts, by);
    }
  });
  const watch = new ResizeObserver(() => update(context, parts));
  watch.observe(parts.stage);
  context.end(() => watch.disconnect());
  context.listen((_, changed) => {
    if (["world", "shown", "layer", "head", "heads", "mass", "from"].some((name) => changed.has(name)))
      update(context, parts);
    else if (changed.has("theme") || changed.has("dusk")) draw(context, parts);
  });
  update(context, parts);
  return element(
    "section",
    { class: "view lines-view", "aria-label": "Lines" },
    headBar(context, mass),
    element("div", { class: "bar" }, parts.heads, element("div", { class: "grow" }), parts.scroll),
    parts.stage,
    parts.note,
  );
}

function chosen(state) {
  const { heads } = layerOf(state);
  const found = (state.heads ?? [state.head]).filter((head) => heads.includes(head));
  return found.length ? found : [heads[0]];
}

/** How many tokens there is room for, and from where. */
function frame({ store }, { stage }) {
  const state = store.get();
  const layer = layerOf(state);
  const most = Math.max(layer.queries, layer.keys);
  const row = Math.max(LOW, Math.min(TALL, (stage.clientHeight - 12) / most));
  const room = Math.max(6, Math.floor((stage.clientHeight - 12) / row + 1e-6));
  const from = Math.max(0, Math.min(state.from, most - room));
  return { row, room, from, most, to: Math.min(layer.queries, from + room), layer };
}

function move(context, parts, by) {
  const { from, most, room } = frame(context, parts);
  context.store.set({ from: Math.max(0, Math.min(most - room, from + by)) });
}

async function update(context, parts) {
  const state = context.store.get();
  if (!parts.stage.clientHeight) return;
  const { from, to, layer } = frame(context, parts);
  drawHeads(context, parts);
  drawScroll(context, parts);
  const params = {
    shown: state.shown,
    layer: layer.number,
    heads: chosen(state),
    from: Math.min(from, layer.queries - 1),
    to: Math.max(to, 1),
    mass: state.mass,
  };
  const asked = `${state.epoch} ${JSON.stringify(params)}`;
  if (asked === parts.asked) {
    draw(context, parts);
    return;
  }
  parts.asked = asked;
  try {
    const { values, arrays } = await context.ask("lines", params);
    if (parts.asked !== asked) return;
    parts.answer = { left_out: values.left_out ?? 0, ...arrays };
    draw(context, parts);
  } catch (error) {
    context.fail(error);
  }
}

/** Where the lines begin, for texts that are longer than the screen. A slider that is being dragged must stay. */
function drawScroll(context, parts) {
  const { from, room, most } = frame(context, parts);
  const range = most > room ? `${room} ${most}` : "";
  if (range === parts.range) return parts.slider?.put(from);
  parts.range = range;
  const words = (n) => `${n} to ${Math.min(most, n + room) - 1}`;
  parts.slider = range
    ? slider("From token", [0, most - room, 1], from, words, (n) => context.store.set({ from: n }))
    : null;
  return refill(parts.scroll, parts.slider);
}

function drawHeads({ store }, { heads: node }) {
  const state = store.get();
  const on = chosen(state);
  const theme = themeOf(state);
  refill(
    node,
    layerOf(state).heads.map((head, n) => {
      const each = button(
        `head ${head}`,
        () => {
          const next = on.includes(head) ? on.filter((h) => h !== head) : [...on, head].sort((a, b) => a - b);
          store.set({ heads: next.length ? next : [head] });
        },
        { class: "chip head-chip", "aria-pressed": String(on.includes(head)), "data-head": head },
      );
      each.style.setProperty("--own", headColour(n, theme));
      return each;
    }),
  );
}

function draw(context, parts) {
  const state = context.store.get();
  if (!parts.answer) return;
  const { row, from, room, layer } = frame(context, parts);
  const tokens = tokensOf(shownOf(state), layer);
  const high = room * row + 12;
  const svg = drawn("svg", {
    viewBox: `0 0 ${WIDTH} ${high}`,
    class: "lines",
    role: "img",
    "aria-label": "Lines",
    preserveAspectRatio: "none",
  });
  const y = (n) => 6 + (n - from + 0.5) * row;
  const links = drawn("g", { fill: "none" }, paths(state, parts.answer, layer, y, high));
  const shown = (list, first) =>
    Array.from({ length: Math.max(0, Math.min(list.length - first, room)) }, (_, n) => first + n);
  const column = (side, list, first) => shown(list, first).map((n) => token(links, side, n, list[n], y(n)));
  svg.append(links);
  const over = element(
    "div",
    { class: "line-tokens" },
    column("query", tokens.rowLabels, from),
    column("key", tokens.columnLabels, from),
  );
  refill(parts.stage, svg, over);
  svg.style.height = `${high}px`;
  const count = parts.answer.weight.data.length;
  refill(
    parts.note,
    `${count} lines carry ${percent(state.mass)} of each row’s weight${parts.answer.left_out ? `; ${parts.answer.left_out} fainter ones are left out` : ""}. Queries are on the left, keys on the right.`,
  );
}

/** Keys out of view are pointed at beyond the edge. */
function paths(state, answer, layer, y, high) {
  const theme = themeOf(state);
  const inside = (at) => Math.max(-TALL, Math.min(high + TALL, at));
  const order = [...answer.weight.data.keys()].sort((a, b) => answer.weight.data[a] - answer.weight.data[b]);
  return order.map((n) => {
    const [i, j, head, weight] = ["query", "key", "head", "weight"].map((name) => answer[name].data[n]);
    const [a, b] = [y(i), inside(y(j))];
    const path = drawn("path", {
      d: `M${LEFT} ${a}C${(LEFT + RIGHT) / 2} ${a} ${(LEFT + RIGHT) / 2} ${b} ${RIGHT} ${b}`,
      stroke: headColour(layer.heads.indexOf(head), theme),
      "stroke-width": (0.6 + 5 * weight).toFixed(2),
      "stroke-opacity": (0.12 + 0.8 * weight).toFixed(3),
      "vector-effect": "non-scaling-stroke",
      "data-query": i,
      "data-key": j,
      "data-head": head,
      "data-weight": weight,
    });
    path.append(drawn("title", {}, `head ${head}: ${number(weight)}`));
    return path;
  });
}

function token(links, side, n, text, at) {
  const node = element(
    "span",
    { class: `line-token of-${side}`, "data-side": side, "data-token": n, title: `${side} ${n}` },
    shortened(label(text)),
    element("sub", {}, n),
  );
  node.style.top = `${at - 13}px`;
  const light = (on) => {
    for (const path of links.children) path.classList.toggle("dim", on && Number(path.dataset[side]) !== n);
  };
  node.addEventListener("pointerenter", () => light(true));
  node.addEventListener("pointerleave", () => light(false));
  return node;
}

function shortened(text) {
  return [...text].length > LETTERS ? `${[...text].slice(0, LETTERS - 1).join("")}…` : text;
}
