// The worked computation on small matrices that can be changed: every intermediate, as it is made.

import { codeBox } from "./codebox.js";
import { choice, element, refill, select, slider } from "./element.js";
import { number } from "./format.js";
import { matrixInput } from "./matrixinput.js";
import { matrix } from "./vectors.js";

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
    refill(parts.choices, options(context, parts, values));
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

function options(context, parts, { masks, weighings }) {
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
      (x) => number(10 ** x, 2),
      (x) => put({ temperature: 10 ** x }),
    ),
    slider(
      "Scale",
      [0, 2, 0.05],
      0,
      (x) => (x ? number(x, 2) : "1/√d"),
      (x) => put({ scale: x || null }),
    ),
    slider(
      "Dropout",
      [0, 0.9, 0.1],
      0,
      (x) => `${Math.round(100 * x)} %`,
      (x) => put({ dropout: x }),
    ),
  ];
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
    if (asked === parts.asked) drawStages(context, parts, values);
  } catch (error) {
    if (asked === parts.asked) refill(parts.stages, element("p", { class: "refused", role: "alert" }, error.message));
  }
}

/** Every stage but those that are typed in. */
function drawStages(context, parts, { formula, stages, queries = [], keys = [], all_code, all_latex }) {
  const typed = new Set(Object.keys(parts.given).map((name) => NAMES[name]));
  refill(parts.formula, formula);
  refill(parts.code, codeBox(context, "The same in torch", all_code), codeBox(context, "The same in LaTeX", all_latex));
  refill(
    parts.stages,
    stages
      .filter((stage) => !typed.has(stage.name))
      .map((stage, n) =>
        element(
          "article",
          { class: "stage-card", "data-stage": stage.name },
          element(
            "header",
            {},
            element("span", { class: "no" }, n + 1),
            element("h3", {}, stage.title ?? stage.name),
            stage.formula ? element("code", {}, stage.formula) : null,
          ),
          stage.words ? element("p", {}, stage.words) : null,
          element("div", { class: "scroll" }, pictured(stage, queries, keys)),
        ),
      ),
  );
}

/** A stage's numbers as a matrix: one number as 1 × 1, a vector as a column, three axes one after another. */
function pictured(stage, queries, keys) {
  const { values } = stage;
  const depth = (x) => (Array.isArray(x) ? 1 + depth(x[0]) : 0);
  const axes = stage.axes ?? [];
  const names = (axis) => (({ query: queries, key: keys })[axis] ?? []).map(String);
  const colour = colourOf(stage.name);
  if (depth(values) === 0) return matrix([[values]], { colour });
  if (depth(values) === 1)
    return matrix(
      values.map((x) => [x]),
      { rows: names(axes[0]), colour },
    );
  if (depth(values) === 2) return matrix(values, { rows: names(axes[0]), columns: names(axes[1]), colour });
  return element(
    "div",
    { class: "stack" },
    values.map((each) => matrix(each, { rows: names(axes[1]), columns: names(axes[2]), colour })),
  );
}

function colourOf(name) {
  return { Q: "query", K: "key", V: "value", output: "value" }[name] ?? "query";
}
