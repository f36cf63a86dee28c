// What attention costs against the length: operations and memory by formula, time by measuring here.

import { logChart } from "./chart.js";
import { headColour } from "./colour.js";
import { apart, crossingsOf } from "./crossings.js";
import { button, choice, element, refill } from "./element.js";
import { count, large, seconds } from "./format.js";
import { themeOf } from "./theme.js";

const LENGTHS = Array.from({ length: 15 }, (_, n) => 2 ** (6 + n)); // 64 to a million
const MEASURED = [256, 512, 1024, 2048, 4096];
const PATIENCE = 150;

export function costView(context) {
  const parts = {
    chart: element("div", { class: "chart-box" }),
    table: element("div", { class: "crossings" }),
    names: element("div", { class: "filter", role: "group", "aria-label": "Mechanisms" }),
    told: element("span", { class: "told", role: "status" }),
    chosen: null,
    known: [],
    answer: null,
    times: new Map(),
    what: "flops",
    timer: 0,
    asked: 0,
    gone: false,
    model: { width: 768, heads: 12, layers: 12, feed_forward: 3072, gated: false },
  };
  const kinds = choice(
    "What",
    [
      ["flops", "Operations"],
      ["bytes", "Memory"],
      ["seconds", "Time measured"],
    ],
    "flops",
    (what) => {
      parts.what = what;
      draw(context, parts);
    },
  );
  const measure = button("Measure on this machine", () => measureAll(context, parts, kinds), { id: "measure" });
  context.listen((_, changed) => {
    if (changed.has("theme") || changed.has("dusk")) draw(context, parts);
  });
  context.end(() => {
    parts.gone = true;
    clearTimeout(parts.timer);
  });
  begin(context, parts);
  return element(
    "section",
    { class: "view cost-view", "aria-label": "Cost" },
    element(
      "div",
      { class: "lead" },
      element(
        "p",
        {},
        "What one forward pass costs, against the number of tokens. Both axes are logarithmic: a steeper line grows by a higher power.",
      ),
    ),
    element(
      "div",
      { class: "bar" },
      kinds,
      sizes(context, parts),
      element("div", { class: "grow" }),
      context.source.kind === "file" ? null : measure,
      parts.told,
    ),
    element("div", { class: "bar" }, parts.names),
    parts.chart,
    parts.table,
  );
}

function sizes(context, parts) {
  const field = (name, words, least, most) => {
    const input = element("input", {
      type: "number",
      min: least,
      max: most,
      value: parts.model[name],
      class: "short",
      "aria-label": words,
    });
    input.value = parts.model[name];
    input.addEventListener("input", () => {
      const typed = Math.round(Number(input.value));
      if (!(typed >= least && typed <= most)) return;
      parts.model[name] = typed;
      clearTimeout(parts.timer);
      parts.timer = setTimeout(() => update(context, parts), PATIENCE);
    });
    return element("label", { class: "field" }, `${words} `, input);
  };
  const gated = element("input", {
    type: "checkbox",
    onchange: () => {
      parts.model.gated = gated.checked;
      update(context, parts);
    },
  });
  return element(
    "div",
    { class: "options" },
    field("width", "Width", 16, 65536),
    field("heads", "Heads", 1, 256),
    field("layers", "Layers", 1, 400),
    field("feed_forward", "Feed-forward", 16, 262144),
    element("label", { class: "check", title: "a feed-forward part of three matrices" }, gated, " gated"),
  );
}

async function begin(context, parts) {
  try {
    const { values } = await context.once("cost_names", {});
    parts.known = values.mechanisms;
    parts.chosen = values.first;
  } catch (error) {
    context.fail(error);
  }
  await update(context, parts);
}

async function update(context, parts) {
  parts.asked += 1;
  const asked = parts.asked;
  try {
    const { values } = await context.once("cost", { mechanisms: parts.chosen, lengths: LENGTHS, ...parts.model });
    if (asked !== parts.asked) return;
    parts.answer = values;
    drawNames(context, parts);
    draw(context, parts);
  } catch (error) {
    context.fail(error);
  }
}

function drawNames(context, parts) {
  const theme = themeOf(context.store.get());
  refill(
    parts.names,
    parts.known.map(({ name, what, formula }, n) => {
      const node = button(
        name,
        () => {
          parts.chosen = parts.chosen.includes(name) ? parts.chosen.filter((x) => x !== name) : [...parts.chosen, name];
          if (!parts.chosen.length) parts.chosen = [name];
          update(context, parts);
        },
        {
          class: "chip head-chip",
          "aria-pressed": String(parts.chosen.includes(name)),
          "data-name": name,
          title: `${what}: ${formula}`,
        },
      );
      node.style.setProperty("--own", headColour(n, theme));
      return node;
    }),
  );
}

function draw(context, parts) {
  if (!parts.answer) return;
  const theme = themeOf(context.store.get());
  const place = (name) => parts.known.findIndex((each) => each.name === name);
  const unit = { flops: (y) => large(y, "FLOP"), bytes: (y) => large(y, "B"), seconds }[parts.what];
  const isTime = parts.what === "seconds";
  const curves = isTime
    ? [...parts.times].map(([name, points]) => ({
        name,
        title: name,
        colour: headColour(place(name), theme),
        points,
        dots: true,
      }))
    : parts.answer.curves.map((curve) => ({
        name: curve.name,
        title: curve.name,
        colour: headColour(place(curve.name), theme),
        points: LENGTHS.map((n, at) => [n, curve[parts.what][at]]),
      }));
  const { rest } = parts.answer;
  if (rest?.[parts.what])
    curves.push({
      name: "rest",
      title: rest.name,
      colour: "var(--soft)",
      points: LENGTHS.map((n, at) => [n, rest[parts.what][at]]),
      dashed: true,
    });
  const crossings = parts.what === "flops" ? crossingsOf(parts.answer) : [];
  refill(
    parts.chart,
    isTime && !curves.length
      ? element("p", { class: "hint boxed" }, "Nothing has been measured yet: press “Measure on this machine”.")
      : logChart({
          curves,
          marks: apart(crossings.filter((each) => each.y)),
          tellX: (n) => (n >= 1024 ? `${count(n / 1024)}k` : String(n)),
          tellY: unit,
          label: "Cost against length",
          nameX: "tokens",
        }),
  );
  refill(
    parts.table,
    crossings.length
      ? element(
          "ul",
          {},
          crossings.map((each) => element("li", { "data-length": each.x }, each.words)),
        )
      : null,
  );
}

/** One after another, the short ones first. */
async function measureAll(context, parts, kinds) {
  parts.what = "seconds";
  kinds.mark("seconds");
  parts.times.clear();
  const { heads, width } = parts.model;
  for (const n of MEASURED) {
    for (const name of parts.chosen) {
      if (parts.gone) return;
      parts.told.textContent = `measuring ${name} at ${n} tokens …`;
      try {
        const { values } = await context.ask("timing", {
          mechanism: name,
          n,
          heads: Math.min(heads, 8),
          width: Math.max(8, Math.round(width / heads)),
        });
        parts.times.set(name, [...(parts.times.get(name) ?? []), [n, values.seconds]]);
        draw(context, parts);
      } catch (error) {
        context.fail(error);
      }
    }
  }
  parts.told.textContent = "";
}
