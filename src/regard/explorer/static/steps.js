// The worked computation on small matrices that can be changed: every intermediate, as it is made.

import { codeBox } from "./codebox.js";
import { choice, element, refill, select, slider } from "./element.js";
import { number } from "./format.js";
import { matrixInput } from "./matrixinput.js";
import { stageCards } from "./stagecards.js";

const COLOURS = { q: "query", k: "key", v: "value", w_q: "query", w_k: "key", w_v: "value", x: "ink" };
const NAMES = { x: "X", w_q: "W_Q", w_k: "W_K", w_v: "W_V", q: "Q", k: "K", v: "V" };
const PATIENCE = 120;
const OWN = {
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

export function stepsView(context) {
  const parts = {
    choices: element("div", { class: "options" }),
    inputs: element("div", { class: "inputs" }),
    stages: element("div", { class: "stages" }),
    note: element("div", { class: "note" }),
    code: element("div", { class: "codes" }),
    presets: element("div"),
    formula: element("p", { class: "formula large" }),
    given: null,
    examples: [],
    asked: 0,
    timer: 0,
    options: { temperature: 1, scale: null, mask: "none", weigh: "softmax", dropout: 0, seed: 1 },
  };
  context.end(() => clearTimeout(parts.timer));
  begin(context, parts);
  return element(
    "section",
    { class: "view steps-view", "aria-label": "Steps" },
    element(
      "div",
      { class: "lead" },
      element(
        "p",
        {},
        "Attention on matrices small enough to read. Change any number, or paste a matrix, and watch what becomes of it.",
      ),
      context.source.kind === "file"
        ? element(
            "p",
            { class: "hint" },
            "In this file the page itself computes. Further normalisers, dropout, and the lines of torch for numbers that you change need Python: use regard look, or regard.steps.",
          )
        : null,
    ),
    element("div", { class: "bar" }, parts.presets, element("div", { class: "grow" }), parts.choices),
    parts.note,
    parts.formula,
    element("div", { class: "steps-split" }, parts.inputs, parts.stages),
    parts.code,
  );
}

async function begin(context, parts) {
  try {
    const { values } = await context.once("examples", {});
    parts.examples = values.examples;
    refill(parts.choices, options(context, parts, { ...values, ...(await possible(context)) }));
  } catch (error) {
    context.fail(error);
  }
  const all = [...parts.examples.map((each) => [each.name, each.title ?? each.name]), ["", "Q, K, V of my own"]];
  refill(
    parts.presets,
    choice("Examples", all, parts.examples[0]?.name ?? "", (name) => take(context, parts, name)),
  );
  take(context, parts, parts.examples[0]?.name ?? "");
}

/** What can be chosen: in a file, which has no Python, what the page can compute itself. */
async function possible(context) {
  if (context.source.kind !== "file") return { hasDropout: true };
  const { values } = await context.once("forms", {});
  return { weighings: Object.keys(values.stages), hasDropout: false };
}

/** Takes the matrices of an example. */
function take(context, parts, name) {
  const example = parts.examples.find((each) => each.name === name) ?? OWN;
  const names = example.x ? ["x", "w_q", "w_k", "w_v"] : ["q", "k", "v"];
  parts.given = Object.fromEntries(names.map((each) => [each, example[each]]));
  parts.tokens = example.tokens ?? null;
  const words = example.wrong ?? [];
  refill(
    parts.note,
    words.length
      ? element(
          "details",
          { class: "hint boxed" },
          element("summary", {}, "This example is often printed with wrong numbers. Here it is worked rightly."),
          element(
            "ul",
            {},
            words.map((each) => element("li", {}, each)),
          ),
        )
      : null,
  );
  refill(
    parts.inputs,
    names.map((each) =>
      matrixInput(NAMES[each], parts.given[each], COLOURS[each], (values) => {
        parts.given = { ...parts.given, [each]: values };
        later(context, parts);
      }),
    ),
  );
  update(context, parts);
}

function options(context, parts, { masks, weighings, hasDropout }) {
  const put = (patch) => {
    Object.assign(parts.options, patch);
    later(context, parts);
  };
  const named = (names) => names.map((name) => [name, name]);
  return [
    element(
      "label",
      { class: "field" },
      "Mask ",
      select("Mask", named(masks), "none", (mask) => put({ mask })),
    ),
    element(
      "label",
      { class: "field" },
      "Weigh by ",
      select("Normaliser", named(weighings), "softmax", (weigh) => put({ weigh })),
    ),
    slider(
      "Temperature",
      [-1, 1, 0.05],
      0,
      (x) => number(power(x), 2),
      (x) => put({ temperature: power(x) }),
    ),
    slider(
      "Scale",
      [0, 2, 0.05],
      0,
      (x) => (x ? number(x, 2) : "1/√d"),
      (x) => put({ scale: x || null }),
    ),
    hasDropout
      ? slider(
          "Dropout",
          [0, 0.9, 0.1],
          0,
          (x) => `${Math.round(100 * x)} %`,
          (x) => put({ dropout: x }),
        )
      : null,
  ];
}

/** A power of ten as people write it: formulas show it, too. */
function power(x) {
  return Number((10 ** x).toPrecision(3));
}

function later(context, parts) {
  clearTimeout(parts.timer);
  parts.timer = setTimeout(() => update(context, parts), PATIENCE);
}

async function update(context, parts) {
  parts.asked += 1;
  const asked = parts.asked;
  const { temperature, scale, dropout, seed, ...names } = parts.options;
  const chosen = {
    ...names,
    ...(temperature === 1 ? {} : { temperature }),
    ...(scale === null ? {} : { scale }),
    ...(dropout ? { dropout, seed } : {}),
  };
  try {
    const { values } = await context.ask("steps", {
      ...parts.given,
      ...(parts.tokens ? { tokens: parts.tokens } : {}),
      ...chosen,
    });
    if (asked === parts.asked) draw(context, parts, values);
  } catch (error) {
    if (asked === parts.asked) refill(parts.stages, element("p", { class: "refused", role: "alert" }, error.message));
  }
}

function draw(context, parts, answer) {
  const typed = new Set(Object.keys(parts.given).map((name) => NAMES[name]));
  refill(parts.formula, answer.formula);
  refill(parts.stages, stageCards(answer, typed));
  refill(
    parts.code,
    codeBox(context, "The same in torch", answer.all_code),
    codeBox(context, "The same in LaTeX", answer.all_latex),
  );
}
