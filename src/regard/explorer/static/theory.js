// The mathematics as experiments: what a formula says beside what the library computes, with sliders.

import { claimLists } from "./claims.js";
import { button, element, refill, slider } from "./element.js";
import { number } from "./format.js";
import { motionFigure } from "./motion.js";
import { panelFigure } from "./panels.js";
import { themeOf } from "./theme.js";

export function theoryView(context) {
  const parts = {
    list: element("nav", { class: "experiments", "aria-label": "Experiments" }),
    head: element("div", { class: "lead" }),
    form: element("form", { class: "options" }),
    told: element("span", { class: "told", role: "status" }),
    body: element("div", { class: "outcome" }),
    known: [],
    ran: [],
    settings: {},
    seed: 0,
    asked: 0,
    outcome: null,
    motion: null,
  };
  context.listen((_, changed) => {
    if (changed.has("experiment")) open(context, parts);
    else if (changed.has("theme") || changed.has("dusk")) draw(context, parts);
  });
  context.end(() => {
    parts.asked += 1; // an answer that comes later is nobody's
    parts.motion?.end();
  });
  begin(context, parts);
  return element(
    "section",
    { class: "view theory-view", "aria-label": "Theory" },
    parts.list,
    element("div", { class: "experiment" }, parts.head, parts.form, parts.body),
  );
}

async function begin(context, parts) {
  try {
    const { values } = await context.ask("experiments", {});
    parts.ran = values.ran;
    const isFile = context.source.kind === "file";
    const hasRun = ({ name }) => values.ran.some((each) => each.name === name);
    parts.known = isFile ? values.experiments.filter(hasRun) : values.experiments;
    if (parts.known.length) open(context, parts);
    else refill(parts.head, element("p", {}, NOTHING));
  } catch (error) {
    context.fail(error);
  }
}

const NOTHING =
  "Experiments are computed by Python, and this file was made before any was run. Use regard look, or regard theory.";

/** Shows an experiment, and runs it once: quickly, or as the file holds it. */
function open(context, parts) {
  const chosen = chosenOf(context, parts);
  if (!chosen) return;
  const held = parts.ran.filter((each) => each.name === chosen.name).at(-1);
  const isFile = context.source.kind === "file";
  parts.settings = isFile ? { ...held.settings } : { ...chosen.full, ...chosen.quick };
  parts.seed = isFile ? held.seed : 0;
  drawList(context, parts, chosen);
  refill(parts.head, element("h2", {}, chosen.name), element("p", {}, chosen.about));
  drawForm(context, parts, chosen);
  run(context, parts, chosen);
}

function chosenOf({ store }, { known }) {
  return known.find((each) => each.name === store.get().experiment) ?? known[0];
}

function drawList({ store }, { list, known }, chosen) {
  refill(
    list,
    known.map(({ name, about }) =>
      button(name, () => store.set({ experiment: name }), {
        class: "quiet",
        title: about,
        "aria-current": name === chosen.name ? "true" : null,
        "data-experiment": name,
      }),
    ),
  );
}

function drawForm(context, parts, chosen) {
  const { form, settings, told } = parts;
  if (context.source.kind === "file") {
    const words = Object.entries(settings).map(([name, value]) => `${name} ${value}`);
    refill(
      form,
      element(
        "p",
        { class: "hint" },
        `As it was run: ${[...words, `seed ${parts.seed}`].join(", ")}. To run it again, use regard look.`,
      ),
    );
    return;
  }
  const bars = chosen.sliders.map(({ name, about, low, high, step, whole }) => {
    const words = (x) => (whole ? String(x) : number(x, 2));
    const bar = slider(name, [low, high, step], settings[name], words, (x) => {
      settings[name] = x;
    });
    bar.title = about;
    return { name, bar };
  });
  const seed = element("input", { type: "number", min: 0, class: "short", "aria-label": "Seed", value: parts.seed });
  const put = (values) => {
    Object.assign(settings, values);
    for (const { name, bar } of bars) bar.put(settings[name]);
  };
  const go = element("button", { type: "submit", class: "primary" }, "Run");
  const full = button("In full", () => {
    put(chosen.full);
    form.requestSubmit();
  });
  full.title = "With the settings of the written pages; takes up to half a minute";
  form.onsubmit = (event) => {
    event.preventDefault();
    parts.seed = Math.max(0, Math.round(Number(seed.value)) || 0);
    run(context, parts, chosen);
  };
  refill(
    form,
    bars.map(({ bar }) => bar),
    element("label", { class: "field" }, "Seed ", seed),
    go,
    full,
    told,
  );
}

async function run(context, parts, chosen) {
  parts.asked += 1;
  const asked = parts.asked;
  const tell = (words, share) => {
    if (asked === parts.asked) parts.told.textContent = words ? `${words}, ${Math.round(100 * (share ?? 0))} %` : "";
  };
  parts.body.classList.add("waiting");
  tell("running", 0);
  try {
    const params = { name: chosen.name, settings: { ...parts.settings }, seed: parts.seed };
    const answer = await context.asking.slowly("experiment", params, tell);
    if (asked !== parts.asked) return;
    parts.outcome = answer;
    draw(context, parts);
    context.say(`${chosen.name}: ${answer.values.agrees ? "everything agrees" : "something does not agree"}.`);
  } catch (error) {
    if (asked === parts.asked) context.fail(error);
  } finally {
    if (asked === parts.asked) {
      tell("");
      parts.body.classList.remove("waiting");
    }
  }
}

function draw(context, parts) {
  if (!parts.outcome) return;
  const { values, arrays } = parts.outcome;
  const theme = themeOf(context.store.get());
  parts.motion?.end();
  parts.motion = values.motion ? motionFigure(context, values.motion, arrays.points) : null;
  refill(
    parts.body,
    element(
      "p",
      { class: "verdict", "data-agrees": String(values.agrees) },
      element("b", { class: values.agrees ? "yes" : "no" }, values.agrees ? "✓ " : "✕ "),
      values.agrees
        ? "What was computed agrees with every formula, and with none of the wrong ones."
        : "Something does not agree: see below.",
    ),
    element(
      "div",
      { class: "theory-panels" },
      parts.motion?.node ?? null,
      values.panels.map((panel) => panelFigure(panel, arrays, theme)),
    ),
    claimLists(values),
  );
  parts.motion?.draw();
}
