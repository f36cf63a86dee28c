// The Cost view: operations, memory and measured time of attention against the sequence length.

import { chart } from "../../charts/chart.js";
import { headColor } from "../../lib/color/palettes.js";
import { button, element, replaceContent, segmentedControl } from "../../lib/element.js";
import { formatDuration, formatTokenCount, formatWithSiPrefix } from "../../lib/format.js";
import { effectiveTheme } from "../../state/theme.js";
import { costCrossovers, mergeNearbyCrossovers } from "./cost-crossovers.js";
import { costCurves } from "./cost-curves.js";
import { measureTimings } from "./cost-timings.js";
import { modelSizePicker } from "./model-size-picker.js";

/** @import { Context, Cost, Mechanism, ModelSize, QuantityName, Timing } from "../../lib/types.js" */

const CURVE_LENGTHS = Array.from({ length: 15 }, (_, n) => 2 ** (6 + n)); // 64 to a million
const DEBOUNCE_MS = 150;

/**
 * @typedef {Object} Parts
 * @property {HTMLElement} chart
 * @property {HTMLElement} table
 * @property {HTMLElement} mechanismChips
 * @property {HTMLElement} sizes
 * @property {HTMLElement} status
 * @property {string[]} selected names of mechanisms
 * @property {Mechanism[]} mechanisms
 * @property {Cost | null} response
 * @property {Timing[]} timings
 * @property {QuantityName} quantity
 * @property {ReturnType<typeof setTimeout> | undefined} timer
 * @property {number} requestId
 * @property {boolean} isClosed
 * @property {ModelSize} model
 */

/** @param {Context} context */
export function costView(context) {
  const isFile = context.source.kind === "file";
  /** @type {Parts} */
  const parts = {
    chart: element("div", { class: "chart-box" }),
    table: element("div", { class: "crossover-list" }),
    mechanismChips: element("div", { class: "chip-group", role: "group", "aria-label": "Mechanisms" }),
    sizes: element("div"),
    status: element("span", { class: "status-text", role: "status" }),
    selected: [],
    mechanisms: [],
    response: null,
    timings: [],
    quantity: "flops",
    timer: undefined,
    requestId: 0,
    isClosed: false,
    model: { embed_dim: 768, num_heads: 12, num_layers: 12, ffn_dim: 3072, gated: false },
  };
  const quantityControl = segmentedControl(
    "Quantity",
    [
      ["flops", "Operations"],
      ["bytes", "Memory"],
      ["seconds", "Measured time"],
    ],
    "flops",
    (quantity) => {
      parts.quantity = quantity;
      draw(context, parts);
    },
  );
  const measure = button("Measure on this machine", () => measureAll(context, parts, quantityControl, measure), {
    id: "measure-times",
  });
  context.subscribe((_, changed) => {
    if (changed.has("theme") || changed.has("isDarkEnvironment")) redraw(context, parts);
  });
  const observer = new ResizeObserver(() => draw(context, parts));
  observer.observe(parts.chart);
  context.end(() => {
    observer.disconnect();
    parts.isClosed = true;
    clearTimeout(parts.timer);
  });
  begin(context, parts);
  return element(
    "section",
    { class: "view cost-view", "aria-label": "Cost" },
    element(
      "div",
      { class: "intro" },
      element(
        "p",
        {},
        "The cost of one forward pass against the number of tokens. ",
        "Both axes are logarithmic: the slope of a line is the exponent of its growth.",
      ),
      isFile
        ? element(
            "p",
            { class: "hint" },
            "This file contains the curves of these models. For other sizes and measurements, use regard explore.",
          )
        : null,
    ),
    element(
      "div",
      { class: "toolbar" },
      quantityControl,
      parts.sizes,
      element("div", { class: "spacer" }),
      isFile ? null : measure,
      parts.status,
    ),
    element("div", { class: "toolbar" }, parts.mechanismChips),
    parts.chart,
    parts.table,
  );
}

/**
 * @param {Context} context
 * @param {Parts} parts
 */
async function begin(context, parts) {
  try {
    const { values } = await context.request("cost_options", {});
    parts.mechanisms = values.mechanisms;
    parts.selected = values.default_mechanisms;
    parts.timings = values.timings;
    const updateDebounced = () => {
      clearTimeout(parts.timer);
      parts.timer = setTimeout(() => update(context, parts), DEBOUNCE_MS);
    };
    const isEditable = context.source.kind !== "file";
    replaceContent(parts.sizes, modelSizePicker(values.model_sizes, parts.model, isEditable, updateDebounced));
    await update(context, parts);
  } catch (error) {
    context.showError(error);
  }
}

/**
 * @param {Context} context
 * @param {Parts} parts
 */
async function update(context, parts) {
  parts.requestId += 1;
  const requestId = parts.requestId;
  try {
    const params = { mechanisms: parts.selected, seq_lens: CURVE_LENGTHS, ...parts.model };
    const { values } = await context.requestCached("cost", params);
    if (requestId !== parts.requestId) return;
    parts.response = values;
    redraw(context, parts);
  } catch (error) {
    context.showError(error);
  }
}

/**
 * @param {Context} context
 * @param {Parts} parts
 */
function redraw(context, parts) {
  drawMechanismChips(context, parts);
  draw(context, parts);
}

/**
 * @param {Context} context
 * @param {Parts} parts
 */
function drawMechanismChips(context, parts) {
  const theme = effectiveTheme(context.store.get());
  replaceContent(
    parts.mechanismChips,
    parts.mechanisms.map(({ name, description, formula }, n) => {
      const isSelected = parts.selected.includes(name);
      const toggle = () => {
        const next = isSelected ? parts.selected.filter((x) => x !== name) : [...parts.selected, name];
        parts.selected = next.length ? next : [name];
        update(context, parts);
      };
      const node = button(name, toggle, {
        class: "chip head-chip",
        "aria-pressed": String(isSelected),
        "data-name": name,
        title: `${description}: ${formula}`,
      });
      node.style.setProperty("--series-color", headColor(n, theme));
      return node;
    }),
  );
}

/**
 * @param {Context} context
 * @param {Parts} parts
 */
function draw(context, parts) {
  if (!parts.response) return;
  const curves = costCurves({ ...parts, response: parts.response }, effectiveTheme(context.store.get()));
  const crossovers = parts.quantity === "flops" ? costCrossovers(parts.response) : [];
  /** @type {Record<QuantityName, (y: number) => string>} */
  const formats = {
    flops: (y) => formatWithSiPrefix(y, "FLOP"),
    bytes: (y) => formatWithSiPrefix(y, "B"),
    seconds: formatDuration,
  };
  replaceContent(
    parts.chart,
    curves.length
      ? chart({
          curves,
          marks: mergeNearbyCrossovers(crossovers.flatMap((mark) => (mark.y ? [{ ...mark, y: mark.y }] : []))),
          label: "Cost against sequence length",
          size: [Math.max(340, Math.min(1120, parts.chart.clientWidth || 1120)), 400],
          x: { name: "tokens", isLog: true, base: 2, format: formatTokenCount },
          y: { isLog: true, format: formats[parts.quantity] },
        })
      : element("p", { class: "hint boxed" }, noTimingsHint(context)),
  );
  replaceContent(
    parts.table,
    crossovers.length
      ? element(
          "ul",
          {},
          crossovers.map(({ x, description }) => element("li", { "data-length": x }, description)),
        )
      : null,
  );
}

/** @param {Context} context */
function noTimingsHint({ source }) {
  return source.kind === "file"
    ? "This file contains no measured times for this model."
    : "There are no measured times for this head size yet. Press “Measure on this machine”.";
}

/** @type {Array<"mechanism" | "seq_len" | "num_heads" | "head_dim">} */
const TIMING_KEYS = ["mechanism", "seq_len", "num_heads", "head_dim"];

/**
 * @param {Context} context
 * @param {Parts} parts
 * @param {{ mark(name: string): void }} quantityControl
 * @param {HTMLButtonElement} measureButton
 */
async function measureAll(context, parts, quantityControl, measureButton) {
  parts.quantity = "seconds";
  quantityControl.mark("seconds");
  measureButton.disabled = true;
  draw(context, parts);
  /** @param {string} text */
  const showStatus = (text) => {
    parts.status.textContent = text;
  };
  /**
   * @param {Timing} a
   * @param {Timing} b
   */
  const isSame = (a, b) => TIMING_KEYS.every((name) => a[name] === b[name]);
  /** @param {Timing} timing */
  const addTiming = (timing) => {
    parts.timings = [...parts.timings.filter((old) => !isSame(old, timing)), timing];
    draw(context, parts);
  };
  const callbacks = { showStatus, addTiming, isCancelled: () => parts.isClosed };
  await measureTimings(context, parts.selected, { ...parts.model }, callbacks);
  showStatus("");
  measureButton.disabled = false;
}
