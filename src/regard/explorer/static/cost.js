// What attention costs against the length: operations and memory by formula, time by measuring here.

import { chart } from "./chart.js";
import { headColour } from "./colour.js";
import { curvesOf } from "./costcurves.js";
import { sizeChooser } from "./costsizes.js";
import { measureEach } from "./costtimes.js";
import { apart, crossingsOf } from "./crossings.js";
import { button, choice, element, refill } from "./element.js";
import { large, power, seconds } from "./format.js";
import { themeOf } from "./theme.js";

const LENGTHS = Array.from({ length: 15 }, (_, n) => 2 ** (6 + n)); // 64 to a million
const PATIENCE = 150;

export function costView(context) {
  const isFile = context.source.kind === "file";
  const parts = {
    chart: element("div", { class: "chart-box" }),
    table: element("div", { class: "crossings" }),
    names: element("div", { class: "filter", role: "group", "aria-label": "Mechanisms" }),
    sizes: element("div"),
    told: element("span", { class: "told", role: "status" }),
    chosen: [],
    known: [],
    answer: null,
    timed: [],
    what: "flops",
    timer: 0,
    asked: 0,
    isGone: false,
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
  const measure = button("Measure on this machine", () => measureAll(context, parts, kinds, measure), {
    id: "measure",
  });
  context.listen((_, changed) => {
    if (changed.has("theme") || changed.has("dusk")) redraw(context, parts);
  });
  const watch = new ResizeObserver(() => draw(context, parts));
  watch.observe(parts.chart);
  context.end(() => {
    watch.disconnect();
    parts.isGone = true;
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
      isFile
        ? element(
            "p",
            { class: "hint" },
            "This file holds the curves of these models. For other sizes, and to measure times, use regard look.",
          )
        : null,
    ),
    element(
      "div",
      { class: "bar" },
      kinds,
      parts.sizes,
      element("div", { class: "grow" }),
      isFile ? null : measure,
      parts.told,
    ),
    element("div", { class: "bar" }, parts.names),
    parts.chart,
    parts.table,
  );
}

async function begin(context, parts) {
  try {
    const { values } = await context.ask("cost_names", {});
    parts.known = values.mechanisms;
    parts.chosen = values.first;
    parts.timed = values.timed;
    const later = () => {
      clearTimeout(parts.timer);
      parts.timer = setTimeout(() => update(context, parts), PATIENCE);
    };
    refill(parts.sizes, sizeChooser(values.sizes, parts.model, context.source.kind !== "file", later));
    await update(context, parts);
  } catch (error) {
    context.fail(error);
  }
}

async function update(context, parts) {
  parts.asked += 1;
  const asked = parts.asked;
  try {
    const { values } = await context.once("cost", { mechanisms: parts.chosen, lengths: LENGTHS, ...parts.model });
    if (asked !== parts.asked) return;
    parts.answer = values;
    redraw(context, parts);
  } catch (error) {
    context.fail(error);
  }
}

function redraw(context, parts) {
  drawNames(context, parts);
  draw(context, parts);
}

function drawNames(context, parts) {
  const theme = themeOf(context.store.get());
  refill(
    parts.names,
    parts.known.map(({ name, what, formula }, n) => {
      const isChosen = parts.chosen.includes(name);
      const press = () => {
        const next = isChosen ? parts.chosen.filter((x) => x !== name) : [...parts.chosen, name];
        parts.chosen = next.length ? next : [name];
        update(context, parts);
      };
      const node = button(name, press, {
        class: "chip head-chip",
        "aria-pressed": String(isChosen),
        "data-name": name,
        title: `${what}: ${formula}`,
      });
      node.style.setProperty("--own", headColour(n, theme));
      return node;
    }),
  );
}

function draw(context, parts) {
  if (!parts.answer) return;
  const curves = curvesOf(parts, themeOf(context.store.get()));
  const crossings = parts.what === "flops" ? crossingsOf(parts.answer) : [];
  const unit = { flops: (y) => large(y, "FLOP"), bytes: (y) => large(y, "B"), seconds }[parts.what];
  refill(
    parts.chart,
    curves.length
      ? chart({
          curves,
          marks: apart(crossings.filter((each) => each.y)),
          label: "Cost against length",
          size: [Math.max(340, Math.min(1120, parts.chart.clientWidth || 1120)), 400],
          x: { name: "tokens", isLog: true, base: 2, tell: power },
          y: { isLog: true, tell: unit },
        })
      : element("p", { class: "hint boxed" }, notMeasured(context)),
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

function notMeasured({ source }) {
  return source.kind === "file"
    ? "No times were measured for this model before the file was made."
    : "Nothing has been measured yet for heads like these: press “Measure on this machine”.";
}

async function measureAll(context, parts, kinds, pressed) {
  parts.what = "seconds";
  kinds.mark("seconds");
  pressed.disabled = true;
  draw(context, parts);
  const tell = (words) => {
    parts.told.textContent = words;
  };
  const isSame = (one, other) => ["mechanism", "n", "heads", "width"].every((name) => one[name] === other[name]);
  const take = (found) => {
    parts.timed = [...parts.timed.filter((each) => !isSame(each, found)), found];
    draw(context, parts);
  };
  await measureEach(context, parts.chosen, { ...parts.model }, { tell, take, isOver: () => parts.isGone });
  tell("");
  pressed.disabled = false;
}
