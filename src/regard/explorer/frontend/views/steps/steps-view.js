// The Steps view: every stage of attention on small editable matrices.

import { element, replaceContent, segmentedControl, select, slider } from "../../lib/element.js";
import { formatNumber, formatWholePercent } from "../../lib/format.js";
import { codeBox } from "../../widgets/code-box.js";
import { matrixInput } from "./matrix-input.js";
import { stageCards } from "./stage-cards.js";

/**
 * @import { Context, InputMatrices, InputName, Steps, WalkthroughExample, WalkthroughOptions } from "../../lib/types.js"
 */

/** @type {Record<InputName, string>} */
const COLORS = { q: "query", k: "key", v: "value", w_q: "query", w_k: "key", w_v: "value", x: "ink" };
/** @type {Record<InputName, string>} */
const MATRIX_NAMES = { x: "X", w_q: "W_Q", w_k: "W_K", w_v: "W_V", q: "Q", k: "K", v: "V" };
const INPUT_DEBOUNCE_MS = 120;
/** @type {WalkthroughExample} */
const CUSTOM_EXAMPLE = {
  name: "",
  q: [
    [1, 0],
    [0, 1],
    [1, 1],
  ],
  k: [
    [1, 0],
    [0, 1],
    [1, -1],
  ],
  v: [
    [1, 0],
    [0, 1],
    [2, 2],
  ],
};

/**
 * @typedef {Object} Options
 * @property {number} temperature
 * @property {number | null} scale
 * @property {string} mask
 * @property {string} normalizer
 * @property {number} dropout
 * @property {number} seed
 */

/**
 * @typedef {Object} Parts
 * @property {HTMLElement} optionRow
 * @property {HTMLElement} inputs
 * @property {HTMLElement} stages
 * @property {HTMLElement} note
 * @property {HTMLElement} code
 * @property {HTMLElement} presets
 * @property {HTMLElement} formula
 * @property {InputMatrices} matrices
 * @property {string[] | null} tokens
 * @property {WalkthroughExample[]} examples
 * @property {number} requestId
 * @property {ReturnType<typeof setTimeout> | undefined} timer
 * @property {Options} options
 */

/** @param {Context} context */
export function stepsView(context) {
  /** @type {Parts} */
  const parts = {
    optionRow: element("div", { class: "option-row" }),
    inputs: element("div", { class: "matrix-inputs" }),
    stages: element("div", { class: "stage-cards" }),
    note: element("div", { class: "note" }),
    code: element("div", { class: "code-boxes" }),
    presets: element("div"),
    formula: element("p", { class: "formula is-large" }),
    matrices: {},
    tokens: null,
    examples: [],
    requestId: 0,
    timer: undefined,
    options: { temperature: 1, scale: null, mask: "none", normalizer: "softmax", dropout: 0, seed: 1 },
  };
  context.end(() => clearTimeout(parts.timer));
  begin(context, parts);
  return element(
    "section",
    { class: "view steps-view", "aria-label": "Steps" },
    element(
      "div",
      { class: "intro" },
      element(
        "p",
        {},
        "Attention on small matrices, stage by stage. Change a number or paste a matrix to update every stage.",
      ),
      context.source.kind === "file"
        ? element(
            "p",
            { class: "hint" },
            "In this file, the page computes the stages. Other normalizers, dropout, and PyTorch code for changed ",
            "numbers need Python: use regard explore or regard.steps.",
          )
        : null,
    ),
    element("div", { class: "toolbar" }, parts.presets, element("div", { class: "spacer" }), parts.optionRow),
    parts.note,
    parts.formula,
    element("div", { class: "steps-columns" }, parts.inputs, parts.stages),
    parts.code,
  );
}

/**
 * @param {Context} context
 * @param {Parts} parts
 */
async function begin(context, parts) {
  try {
    const { values } = await context.requestCached("walkthrough_examples", {});
    parts.examples = values.examples;
    const available = { ...values, ...(await availableOptions(context)) };
    replaceContent(parts.optionRow, optionControls(context, parts, available));
  } catch (error) {
    context.showError(error);
  }
  /** @type {Array<[string, string]>} */
  const choices = parts.examples.map(({ name, title }) => [name, title ?? name]);
  replaceContent(
    parts.presets,
    segmentedControl("Examples", [...choices, ["", "Custom Q, K, V"]], parts.examples[0]?.name ?? "", (name) =>
      loadExample(context, parts, name),
    ),
  );
  loadExample(context, parts, parts.examples[0]?.name ?? "");
}

/**
 * The available options: all with Python; in an exported file, those that the page can compute.
 * @param {Context} context
 */
async function availableOptions(context) {
  if (context.source.kind !== "file") return { hasDropout: true };
  const { values } = await context.requestCached("stage_templates", {});
  return { masks: Object.keys(values.formulas), normalizers: Object.keys(values.stages), hasDropout: false };
}

/**
 * Loads the matrices of an example.
 * @param {Context} context
 * @param {Parts} parts
 * @param {string} name
 */
function loadExample(context, parts, name) {
  const example = parts.examples.find((candidate) => candidate.name === name) ?? CUSTOM_EXAMPLE;
  /** @type {InputName[]} */
  const inputs = example.x ? ["x", "w_q", "w_k", "w_v"] : ["q", "k", "v"];
  parts.matrices = Object.fromEntries(inputs.map((input) => [input, example[input]]));
  parts.tokens = example.tokens ?? null;
  const corrections = example.corrections ?? [];
  replaceContent(
    parts.note,
    corrections.length
      ? element(
          "details",
          { class: "hint boxed" },
          element("summary", {}, "This example is often printed with wrong numbers. The numbers here are correct."),
          element(
            "ul",
            {},
            corrections.map((correction) => element("li", {}, correction)),
          ),
        )
      : null,
  );
  replaceContent(
    parts.inputs,
    inputs.map((input) =>
      matrixInput(MATRIX_NAMES[input], example[input] ?? [[0]], COLORS[input], (values) => {
        parts.matrices = { ...parts.matrices, [input]: values };
        updateDebounced(context, parts);
      }),
    ),
  );
  update(context, parts);
}

/**
 * @param {Context} context
 * @param {Parts} parts
 * @param {WalkthroughOptions & { hasDropout: boolean }} available
 */
function optionControls(context, parts, { masks, normalizers, hasDropout }) {
  /** @param {Partial<Options>} patch */
  const setOptions = (patch) => {
    Object.assign(parts.options, patch);
    updateDebounced(context, parts);
  };
  /** @param {string[]} names */
  const toOptions = (names) => names.map((name) => /** @type {[string, string]} */ ([name, name]));
  return [
    element(
      "label",
      { class: "field" },
      "Mask ",
      select("Mask", toOptions(masks), "none", (mask) => setOptions({ mask })),
    ),
    element(
      "label",
      { class: "field" },
      "Normalizer ",
      select("Normalizer", toOptions(normalizers), "softmax", (normalizer) => setOptions({ normalizer })),
    ),
    slider(
      "Temperature",
      [-1, 1, 0.05],
      0,
      (x) => formatNumber(powerOfTen(x), 2),
      (x) => setOptions({ temperature: powerOfTen(x) }),
    ),
    slider(
      "Scale",
      [0, 2, 0.05],
      0,
      (x) => (x ? formatNumber(x, 2) : "1/√d"),
      (x) => setOptions({ scale: x || null }),
    ),
    hasDropout ? slider("Dropout", [0, 0.9, 0.1], 0, formatWholePercent, (dropout) => setOptions({ dropout })) : null,
  ];
}

/**
 * A power of ten with three digits, which also appears in formulas.
 * @param {number} x
 */
function powerOfTen(x) {
  return Number((10 ** x).toPrecision(3));
}

/**
 * @param {Context} context
 * @param {Parts} parts
 */
function updateDebounced(context, parts) {
  clearTimeout(parts.timer);
  parts.timer = setTimeout(() => update(context, parts), INPUT_DEBOUNCE_MS);
}

/**
 * @param {Context} context
 * @param {Parts} parts
 */
async function update(context, parts) {
  parts.requestId += 1;
  const requestId = parts.requestId;
  const { temperature, scale, dropout, seed, ...choices } = parts.options;
  const options = {
    ...choices,
    ...(temperature === 1 ? {} : { temperature }),
    ...(scale === null ? {} : { scale }),
    ...(dropout ? { dropout, seed } : {}),
  };
  try {
    const { values } = await context.request("steps", {
      ...parts.matrices,
      ...(parts.tokens ? { tokens: parts.tokens } : {}),
      ...options,
    });
    if (requestId === parts.requestId) draw(context, parts, values);
  } catch (error) {
    if (requestId !== parts.requestId) return;
    replaceContent(
      parts.stages,
      element("p", { class: "error-text", role: "alert" }, error instanceof Error ? error.message : String(error)),
    );
  }
}

/**
 * @param {Context} context
 * @param {Parts} parts
 * @param {Steps} response
 */
function draw(context, parts, response) {
  const inputNames = new Set(
    Object.entries(MATRIX_NAMES).flatMap(([input, name]) => (input in parts.matrices ? [name] : [])),
  );
  replaceContent(parts.formula, response.formula);
  replaceContent(parts.stages, stageCards(response, inputNames));
  replaceContent(
    parts.code,
    codeBox(context, "The same in PyTorch", response.code),
    codeBox(context, "The same in LaTeX", response.latex),
  );
}
