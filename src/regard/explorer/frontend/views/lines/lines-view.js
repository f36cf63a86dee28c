// The Lines view: lines from queries to the keys that they attend to, for one or more heads.

import { headColor } from "../../lib/color/palettes.js";
import { button, element, replaceContent, slider, svgElement } from "../../lib/element.js";
import { formatNumber, formatPercent, pluralize, tokenLabel, truncate } from "../../lib/format.js";
import { selectHead, selectTokens } from "../../state/selectors.js";
import { effectiveTheme } from "../../state/theme.js";
import { headToolbar } from "../../widgets/head-toolbar.js";
import { clampLineEnd, drawingOrder, selectedHeads, visibleRange } from "./visible-lines.js";

/**
 * @import { Slider } from "../../lib/element.js"
 * @import { Context, Layer, LineArrays, Side, State } from "../../lib/types.js"
 */

const WIDTH = 1000; // of the viewBox
const [LEFT, RIGHT] = [330, 670]; // the ends of the lines in the viewBox
const MIDDLE = (LEFT + RIGHT) / 2;
const MAX_TOKEN_CHARACTERS = 22;
/** @type {Record<string, number>} */
const SCROLL_STEPS = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10 };

/**
 * @typedef {LineArrays & {num_omitted: number}} Lines
 * @typedef {Object} Parts
 * @property {HTMLElement} heads
 * @property {HTMLElement} area
 * @property {HTMLElement} note
 * @property {HTMLElement} scroll
 * @property {Lines | null} response
 * @property {string} requestId
 * @property {string} scrollRange the rows and tokens of the slider; empty without a slider
 * @property {Slider | null} slider
 */

/** @param {Context} context */
export function linesView(context) {
  const { store } = context;
  /** @type {Parts} */
  const parts = {
    heads: element("div", { class: "chip-group", role: "group", "aria-label": "Heads to draw" }),
    area: element("div", {
      class: "lines-area",
      tabindex: 0,
      role: "group",
      "aria-label": "Lines from queries on the left to keys on the right. The up and down keys scroll.",
    }),
    note: element("p", { class: "hint" }),
    scroll: element("div"),
    response: null,
    requestId: "",
    scrollRange: "",
    slider: null,
  };
  const mass = slider(
    "Mass",
    [0.05, 1, 0.05],
    store.get().lineMass,
    (x) => formatPercent(x),
    (value) => store.set({ lineMass: value }),
  );
  mass.title = "Draws the largest weights of each query, until they have this fraction of its weight";
  parts.area.addEventListener(
    "wheel",
    (event) => {
      event.preventDefault();
      scrollBy(context, parts, Math.sign(event.deltaY) * 3);
    },
    { passive: false },
  );
  parts.area.addEventListener("keydown", (event) => {
    const step = SCROLL_STEPS[event.key];
    if (step) {
      event.preventDefault();
      scrollBy(context, parts, step);
    }
  });
  const observer = new ResizeObserver(() => update(context, parts));
  observer.observe(parts.area);
  context.end(() => observer.disconnect());
  context.subscribe((_, changed) => {
    if (
      ["serverState", "session", "layer", "head", "lineHeads", "lineMass", "lineStart"].some((name) =>
        changed.has(name),
      )
    )
      update(context, parts);
    else if (changed.has("theme") || changed.has("isDarkEnvironment")) draw(context, parts);
  });
  update(context, parts);
  return element(
    "section",
    { class: "view lines-view", "aria-label": "Lines" },
    headToolbar(context, mass),
    element("div", { class: "toolbar" }, parts.heads, element("div", { class: "spacer" }), parts.scroll),
    parts.area,
    parts.note,
  );
}

/**
 * @param {Context} context
 * @param {Parts} parts
 * @param {number} step
 */
function scrollBy(context, parts, step) {
  const { start, numTokens, numRows } = visibleRange(context.store.get(), parts.area.clientHeight);
  context.store.set({ lineStart: Math.max(0, Math.min(numTokens - numRows, start + step)) });
}

/**
 * @param {Context} context
 * @param {Parts} parts
 */
async function update(context, parts) {
  const state = context.store.get();
  if (!parts.area.clientHeight) return;
  const { start, queryEnd, layer } = visibleRange(context.store.get(), parts.area.clientHeight);
  drawHeads(context, parts);
  drawScroll(context, parts);
  const params = {
    session: state.session,
    layer: layer.index,
    heads: selectedHeads(state),
    query_start: Math.min(start, layer.num_queries - 1),
    query_end: Math.max(queryEnd, 1),
    mass: state.lineMass,
  };
  const requestId = `${state.stateVersion} ${JSON.stringify(params)}`;
  if (requestId === parts.requestId) {
    draw(context, parts);
    return;
  }
  parts.requestId = requestId;
  try {
    const { values, arrays } = await context.request("top_weights", params);
    if (parts.requestId !== requestId) return;
    parts.response = { num_omitted: values.num_omitted ?? 0, ...arrays };
    draw(context, parts);
  } catch (error) {
    context.showError(error);
  }
}

/**
 * The slider that scrolls a text longer than the screen. It is not replaced while the user drags it.
 * @param {Context} context
 * @param {Parts} parts
 */
function drawScroll(context, parts) {
  const { start, numRows, numTokens } = visibleRange(context.store.get(), parts.area.clientHeight);
  const scrollRange = numTokens > numRows ? `${numRows} ${numTokens}` : "";
  if (scrollRange === parts.scrollRange) {
    parts.slider?.setValue(start);
    return;
  }
  parts.scrollRange = scrollRange;
  /** @param {number} n */
  const format = (n) => `${n} to ${Math.min(numTokens, n + numRows) - 1}`;
  /** @param {number} n */
  const onInput = (n) => context.store.set({ lineStart: n });
  parts.slider = scrollRange ? slider("Tokens", [0, numTokens - numRows, 1], start, format, onInput) : null;
  replaceContent(parts.scroll, parts.slider);
}

/**
 * @param {Context} context
 * @param {Parts} parts
 */
function drawHeads({ store }, { heads: node }) {
  const state = store.get();
  const selected = selectedHeads(state);
  const theme = effectiveTheme(state);
  replaceContent(
    node,
    selectHead(state).layer.head_indices.map((head, n) => {
      const isSelected = selected.includes(head);
      const chip = button(
        `Head ${head}`,
        () => {
          const next = isSelected ? selected.filter((h) => h !== head) : [...selected, head].sort((a, b) => a - b);
          store.set({ lineHeads: next.length ? next : [head] });
        },
        { class: "chip head-chip", "aria-pressed": String(isSelected), "data-head": head },
      );
      chip.style.setProperty("--series-color", headColor(n, theme));
      return chip;
    }),
  );
}

/**
 * @param {Context} context
 * @param {Parts} parts
 */
function draw(context, parts) {
  const state = context.store.get();
  if (!parts.response) return;
  const { rowHeight, start, numRows, layer } = visibleRange(context.store.get(), parts.area.clientHeight);
  const tokens = selectTokens(selectHead(state).session, layer);
  const height = numRows * rowHeight + 12;
  const svg = svgElement("svg", {
    viewBox: `0 0 ${WIDTH} ${height}`,
    class: "lines",
    role: "img",
    "aria-label": "Lines between queries and keys",
    preserveAspectRatio: "none",
  });
  /** @param {number} n */
  const y = (n) => 6 + (n - start + 0.5) * rowHeight;
  const lines = svgElement("g", { fill: "none" }, linePaths(state, parts.response, layer, y, height));
  svg.append(lines);
  /**
   * @param {Side} side
   * @param {string[]} labels
   */
  const column = (side, labels) => {
    const count = Math.max(0, Math.min(labels.length - start, numRows));
    const indices = Array.from({ length: count }, (_, n) => start + n);
    return indices.map((n) => lineToken(lines, side, n, labels[n], y(n)));
  };
  const labels = element(
    "div",
    { class: "line-tokens" },
    column("query", tokens.rowLabels),
    column("key", tokens.columnLabels),
  );
  replaceContent(parts.area, svg, labels);
  svg.style.height = `${height}px`;
  const count = parts.response.weight.data.length;
  const omitted = parts.response.num_omitted;
  const summary = `${pluralize(count, "line")} for ${formatPercent(state.lineMass)} of the weight of each query`;
  const omission = omitted ? `; ${pluralize(omitted, "smaller weight")} omitted` : "";
  replaceContent(parts.note, `${summary}${omission}. Queries are on the left, keys on the right.`);
}

/**
 * The lines, the strongest on top. Lines to invisible keys end just outside the drawing.
 * @param {State} state
 * @param {Lines} response
 * @param {Layer} layer
 * @param {(n: number) => number} y
 * @param {number} height
 */
function linePaths(state, response, layer, y, height) {
  const theme = effectiveTheme(state);
  return drawingOrder(response).map((n) => {
    const [i, j, head, weight] = [response.query, response.key, response.head, response.weight].map(
      ({ data }) => data[n],
    );
    const [queryY, keyY] = [y(i), clampLineEnd(y(j), height)];
    const path = svgElement("path", {
      d: `M${LEFT} ${queryY}C${MIDDLE} ${queryY} ${MIDDLE} ${keyY} ${RIGHT} ${keyY}`,
      stroke: headColor(layer.head_indices.indexOf(head), theme),
      "stroke-width": (0.6 + 5 * weight).toFixed(2),
      "stroke-opacity": (0.12 + 0.8 * weight).toFixed(3),
      "vector-effect": "non-scaling-stroke",
      "data-query": i,
      "data-key": j,
      "data-head": head,
      "data-weight": weight,
    });
    path.append(svgElement("title", {}, `Head ${head}: ${formatNumber(weight)}`));
    return path;
  });
}

/**
 * The label of a token; hovering it dims the lines of other tokens.
 * @param {SVGElement} lines
 * @param {Side} side
 * @param {number} n
 * @param {string} text
 * @param {number} y
 */
function lineToken(lines, side, n, text, y) {
  const node = element(
    "span",
    { class: `line-token ${side}-color`, "data-side": side, "data-token": n, title: `${side} ${n}` },
    truncate(tokenLabel(text), MAX_TOKEN_CHARACTERS),
    element("sub", {}, n),
  );
  node.style.top = `${y - 13}px`;
  /** @param {boolean} isHovered */
  const dimOthers = (isHovered) => {
    for (const path of /** @type {Iterable<SVGElement>} */ (lines.children))
      path.classList.toggle("is-dimmed", isHovered && Number(path.dataset[side]) !== n);
  };
  node.addEventListener("pointerenter", () => dimOthers(true));
  node.addEventListener("pointerleave", () => dimOthers(false));
  return node;
}
