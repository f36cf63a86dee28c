// One weight, worked through: every number from the query and the key to the output.

import { button, element, refill } from "./element.js";
import { label, number, quoted } from "./format.js";
import { headBar } from "./headbar.js";
import { layerOf, shownOf, tokensOf } from "./subject.js";
import { vectors } from "./vectors.js";

export function arithmeticView(context) {
  const parts = { body: element("div", { class: "sums" }), pair: element("div", { class: "pair-chooser" }), asked: "" };
  const hear = (_, changed) => {
    if (["world", "shown", "layer", "head", "query", "key"].some((name) => changed.has(name))) update(context, parts);
  };
  context.listen(hear);
  const watch = new ResizeObserver(() => redraw(context, parts));
  watch.observe(parts.body);
  context.end(() => watch.disconnect());
  update(context, parts);
  return element("section", { class: "view arithmetic-view", "aria-label": "Arithmetic" }, headBar(context, parts.pair), parts.body);
}

/** A cell to begin with, if none was chosen: the last query and what it looks at most. */
async function begun(context, layer) {
  const { shown, head } = context.store.get();
  const query = layer.queries - 1;
  const { arrays } = await context.ask("row", { shown, layer: layer.number, heads: [head], queries: [query] });
  const row = arrays.mean.data;
  return { query, key: row.indexOf(row.reduce((top, w) => Math.max(top, w), 0)) };
}

async function update(context, parts) {
  const { store } = context;
  const layer = layerOf(store.get());
  if (!layer) return;
  try {
    const { query, key } = store.get();
    if (query === null || key === null) {
      store.set(await begun(context, layer));
      return;
    }
    const state = store.get();
    drawPair(context, parts, layer);
    const params = { shown: state.shown, layer: layer.number, head: state.head, query, key };
    const asked = `${state.epoch} ${JSON.stringify(params)}`;
    if (asked === parts.asked) return;
    parts.asked = asked;
    const { values } = await context.once("cell", params);
    if (parts.asked !== asked) return;
    context.looked.add(JSON.stringify([layer.number, state.head, query, key]));
    parts.cell = values;
    parts.across = 0;
    redraw(context, parts);
    const { rows, columns } = tokensOf(shownOf(state), layer);
    context.say(`${quoted(rows[query])} looks at ${quoted(columns[key])} with weight ${number(values.weight)}.`);
  } catch (error) {
    context.fail(error);
  }
}

/** As many columns as there is room for: a power of two, so that blocks end where people count. */
function redraw(context, parts) {
  if (!parts.cell) return;
  const room = parts.body.clientWidth;
  const across = room > 1180 ? 16 : room > 720 ? 8 : 4;
  if (across === parts.across) return;
  parts.across = across;
  refill(parts.body, sums(context, parts.cell, across));
}

function drawPair({ store }, { pair }, layer) {
  const state = store.get();
  const { rows, columns, first } = tokensOf(shownOf(state), layer);
  const box = (name, words, length, token, shift) => {
    const input = element("input", { type: "number", min: shift, max: length - 1 + shift, value: state[name] + shift, "aria-label": words });
    input.value = state[name] + shift;
    input.addEventListener("change", () => store.set({ [name]: Math.max(0, Math.min(length - 1, Math.round(Number(input.value)) - shift || 0)) }));
    return element("label", { class: `of-${name} field` }, `${words} `, input, element("b", {}, label(token)));
  };
  refill(pair, box("query", "Query", layer.queries, rows[state.query], first), box("key", "Key", layer.keys, columns[state.key], 0));
}

/** The steps in the order of the mathematics. */
function sums(context, cell, across) {
  const state = context.store.get();
  const layer = layerOf(state);
  const { rows, columns } = tokensOf(shownOf(state), layer);
  const names = { query: label(rows[cell.query]), key: label(columns[cell.key]), top: columns[cell.maximum_at] };
  const steps = [...scored(cell, names, across), ...weighed(cell, names), ...taken(cell, names, across)];
  return [
    headline(context, cell, names),
    element("ol", { class: "sum-list" }, steps.filter(Boolean).map(([title, formula, ...body]) => element("li", {},
      element("div", { class: "said" }, element("h3", {}, title), formula ? element("p", { class: "formula" }, formula) : null), element("div", { class: "shown" }, body)))),
    codeBlock(context, cell.code),
  ];
}

function headline(context, cell, names) {
  return element("div", { class: "headline" },
    element("p", {}, "How much of ", element("b", { class: "of-key" }, names.key), " does ", element("b", { class: "of-query" }, names.query), " take?"),
    element("output", { class: "weight", "data-weight": cell.weight }, number(cell.weight)),
    element("p", { class: "formula" }, cell.formula?.text ?? ""),
    button("‹ Back to the map", () => context.store.set({ view: "map" }), { class: "quiet" }));
}

function scored(cell, names, across) {
  const isDot = cell.kind === "dot";
  const found = [[
    isDot ? "Compare number by number" : "Compare",
    isDot ? "qᵢ, kⱼ and their products" : "qᵢ, kⱼ",
    vectors([
      { name: "q", values: cell.q, colour: "query" },
      { name: "k", values: cell.k, colour: "key" },
      ...(cell.products ? [{ name: isDot ? "q × k" : "u tanh", values: cell.products, colour: "ink" }] : []),
    ], across),
  ]];
  if (cell.products) found.push(["Add the products up", isDot ? "qᵢ · kⱼ" : "the sum", line([addends(cell.products), " = ", figure("dot", cell.dot)])]);
  if (isDot && cell.scale !== null) {
    found.push(["Scale", `times ${scaleWords(cell)}`, line([figure("", cell.dot), " × ", figure("", cell.scale), " = ", figure("scaled", cell.scaled)])]);
  }
  if (cell.rule) found.push(["The rule", cell.rule.text, line([figure("", cell.scaled), " becomes ", figure("after_rule", cell.after_rule)])]);
  found.push(["May it look there?", cell.mask ? `seen where ${cell.mask.text}` : "no mask: everyone sees everything",
    line([cell.seen ? element("b", { class: "yes" }, "yes") : element("b", { class: "no" }, "no: the weight is exactly 0"), cell.seen ? ["; the score is ", figure("score", cell.score)] : ""])]);
  return found;
}

/** The first few products; all of them stand above. */
function addends(products) {
  const some = products.slice(0, 4).map((x, n) => (n && x >= 0 ? ` + ${number(x, 3)}` : n ? ` − ${number(-x, 3)}` : number(x, 3)));
  return `${some.join("")}${products.length > 4 ? " + …" : ""}`;
}

function scaleWords(cell) {
  const width = cell.q.length;
  return Math.abs(cell.scale - 1 / Math.sqrt(width)) < 1e-9 ? `1/√${width}` : number(cell.scale);
}

function weighed(cell, names) {
  if (!cell.seen) return [];
  if (cell.maximum === undefined || cell.maximum === null) {
    const statistic = cell.statistic ? [`${cell.statistic.name} = `, figure("statistic", cell.statistic.value), "; "] : [];
    return [["Weigh", cell.weighing, line([...statistic, "the weight is ", figure("weight", cell.weight, "weight")])]];
  }
  return [
    ["Subtract the row’s largest score", `so that nothing grows too large; it is ${quoted(names.top ?? "")}’s`, line([figure("", cell.score), " − ", figure("maximum", cell.maximum), " = ", figure("exponent", cell.exponent)])],
    ["Raise e to it", "exp(sᵢⱼ − mᵢ)", line(["e", element("sup", {}, number(cell.exponent)), " = ", figure("power", cell.power)])],
    ["Divide by the row’s sum", `the sum over the ${cell.keys_seen} keys that it sees`, line([figure("", cell.power), " ÷ ", figure("total", cell.total), " = ", figure("weight", cell.weight, "weight")])],
  ];
}

function taken(cell, names, across) {
  return [
    [`Take that much of ${names.key}’s value`, "aᵢⱼ vⱼ", vectors([
      { name: "v", values: cell.v, colour: "value" },
      { name: `${number(cell.weight, 3)} × v`, values: cell.taken, colour: "ink" },
    ], across, 3)],
    ["Do so for every key, and add", "oᵢ = Σⱼ aᵢⱼ vⱼ", vectors([{ name: "output", values: cell.output, colour: "value" }], across, 3)],
  ];
}

function line(children) {
  return element("p", { class: "line" }, children.flat());
}

function figure(name, value, more = "") {
  return element("span", { class: `fig ${more}`, "data-name": name, "data-value": value, title: String(value) }, number(value));
}

function codeBlock(context, code) {
  if (!code) return null;
  const text = Array.isArray(code) ? code.join("\n") : code;
  const copy = button("Copy", async () => {
    try {
      await navigator.clipboard.writeText(text);
      context.say("The code was copied.");
      copy.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(block);
    }
  }, { class: "quiet" });
  const block = element("pre", { class: "code", tabindex: 0 }, text);
  return element("div", { class: "code-box" }, element("div", { class: "code-head" }, element("h3", {}, "The same in torch"), copy), block);
}
