// The model continues the text; each step's row can be looked at.

import { button, element, refill, slider } from "./element.js";
import { label, number } from "./format.js";
import { headBar } from "./headbar.js";
import { barList, topOf } from "./looks.js";
import { rootShare } from "./scale.js";
import { layerOf, shownOf, tokensOf } from "./subject.js";
import { sureStrip } from "./surestrip.js";
import { TextFlow } from "./textflow.js";

const FRAME = 700; // milliseconds a step when it plays
const FAINT = 0.003; // weights below are not shaded

export function generateView(context) {
  const { store } = context;
  const flow = new TextFlow({
    label: "The text with what the model added; Enter on an added token goes to its step",
    point: () => {},
    pick: (item) => {
      if (generatedOf(store.get())) go(context, item.first);
    },
    span: () => {},
    clear: () => {},
  });
  const parts = {
    flow,
    scrub: element("div", { class: "scrub" }),
    side: element("aside", { class: "side" }),
    form: element("form", { class: "options" }),
    weights: null,
    asked: "",
    playing: 0,
  };
  makeForm(context, parts);
  context.listen((_, changed) => {
    const has = (...names) => names.some((name) => changed.has(name));
    if (has("world", "shown")) build(context, parts);
    else if (has("step", "layer", "head")) update(context, parts);
  });
  context.end(() => {
    clearInterval(parts.playing);
    flow.leave();
  });
  build(context, parts);
  return element(
    "section",
    { class: "view generate-view", "aria-label": "Generate" },
    headBar(context, parts.form),
    parts.scrub,
    element("div", { class: "split" }, element("div", { class: "panes" }, flow.node), parts.side),
  );
}

function generatedOf(state) {
  return shownOf(state)?.generated ?? null;
}

function makeForm(context, parts) {
  const chosen = { count: 24, temperature: 0, seed: 0 };
  const submit = element("button", { type: "submit", class: "primary" }, "Continue");
  const count = slider("Tokens", [1, 128, 1], chosen.count, String, (n) => {
    chosen.count = n;
  });
  const temperature = slider(
    "Temperature",
    [0, 2, 0.1],
    0,
    (x) => (x ? number(x, 1) : "likeliest"),
    (x) => {
      chosen.temperature = x;
    },
  );
  const seed = element("input", { type: "number", min: 0, value: 0, "aria-label": "Seed", class: "short" });
  parts.form.append(count, temperature, element("label", { class: "field" }, "Seed ", seed), submit);
  parts.form.addEventListener("submit", async (event) => {
    event.preventDefault();
    submit.disabled = true;
    try {
      const { shown } = context.store.get();
      const { values } = await context.asking.slowly(
        "generate",
        { shown, count: chosen.count, temperature: chosen.temperature, seed: Number(seed.value) || 0 },
        context.status,
      );
      await context.refresh({
        shown: values.id,
        step: values.first,
        hover: null,
        query: null,
        key: null,
        locked: [],
        place: null,
      });
    } catch (error) {
      context.fail(error);
    } finally {
      submit.disabled = false;
      context.status("");
    }
  });
}

function build(context, parts) {
  const state = context.store.get();
  const shown = shownOf(state);
  const made = generatedOf(state);
  const { columns, columnParts } = tokensOf(shown, layerOf(state));
  parts.flow.show(columns, { parts: columnParts });
  parts.form.hidden = !shown.can_generate;
  clearInterval(parts.playing);
  parts.playing = 0;
  if (!made) {
    refill(
      parts.scrub,
      element(
        "p",
        { class: "hint boxed" },
        shown.can_generate
          ? "Let the model continue the text: then each step can be looked at, one row a step."
          : "This recording has no model that could continue it.",
      ),
    );
    refill(parts.side);
    parts.flow.colour(() => null);
    return;
  }
  const last = made.first + made.steps.length - 1;
  const bar = slider(
    "Step",
    [made.first, last, 1],
    state.step ?? made.first,
    (n) => `${n - made.first + 1} of ${made.steps.length}`,
    (n) => go(context, n),
  );
  parts.bar = bar;
  const play = button(
    "Play",
    () => {
      if (parts.playing) return stop(parts, play);
      play.textContent = "Pause";
      parts.playing = setInterval(() => {
        const now = context.store.get().step ?? made.first;
        if (now >= last) stop(parts, play);
        else go(context, now + 1);
      }, FRAME);
      return undefined;
    },
    { id: "play" },
  );
  parts.sure = sureStrip(made.steps, (position) => go(context, position));
  refill(parts.scrub, play, bar, parts.sure);
  if (state.step === null || state.step < made.first || state.step > last) context.store.set({ step: made.first });
  parts.asked = "";
  update(context, parts);
}

function stop(parts, play) {
  clearInterval(parts.playing);
  parts.playing = 0;
  play.textContent = "Play";
}

function go(context, position) {
  const made = generatedOf(context.store.get());
  const last = made.first + made.steps.length - 1;
  context.store.set({ step: Math.max(made.first, Math.min(last, position)) });
}

/** The row by which the token of this step was chosen: that of the token before it. */
async function update(context, parts) {
  const state = context.store.get();
  const made = generatedOf(state);
  if (!made || state.step === null) return;
  parts.bar.put(state.step);
  parts.sure.mark(state.step);
  const layer = layerOf(state);
  const query = state.step - 1 - layer.first;
  const asked = `${state.epoch} ${state.shown} ${layer.number} ${state.head} ${query}`;
  const isInside = query >= 0 && query < layer.queries;
  if (asked !== parts.asked) parts.weights = null; // those of another step say nothing about this one
  if (asked !== parts.asked && isInside) {
    parts.asked = asked;
    try {
      const { arrays } = await context.ask("row", {
        shown: state.shown,
        layer: layer.number,
        heads: [state.head],
        queries: [query],
      });
      if (parts.asked !== asked) return;
      parts.weights = arrays.mean.data;
    } catch (error) {
      context.fail(error);
      return;
    }
  }
  draw(context, parts, made);
}

function draw(context, { flow, side, weights }, made) {
  const state = context.store.get();
  const { columnLabels } = tokensOf(shownOf(state), layerOf(state));
  const before = weights ? weights.subarray(0, state.step) : null;
  flow.colour(({ first }) => ({
    look: before && before[first] > FAINT ? rootShare(before[first]) : 0,
    seen: 0,
    state: stateOf(first, state.step, made.first),
  }));
  flow.reveal(state.step);
  const step = made.steps[state.step - made.first];
  const probability = number(step.probability, 3);
  refill(
    side,
    element("h3", { class: "subject" }, label(step.text), element("small", {}, ` token ${state.step}`)),
    element(
      "p",
      { class: "hint" },
      "was chosen with probability ",
      element("b", { "data-value": step.probability }, probability),
      ". Shaded is where the token before it looked.",
    ),
    barList(
      "likeliest",
      "of-query",
      step.others.map(([text, value]) => ({ text, value, first: null })),
      "probabilities",
    ),
    before ? topOf(before, columnLabels) : null,
  );
  context.say(`Step ${state.step - made.first + 1}: ${label(step.text)}, probability ${probability}.`);
}

/** What a token is at a step: chosen now, the one that looks, not there yet, made before, or given. */
function stateOf(token, step, first) {
  if (token === step) return "key";
  if (token === step - 1) return "query";
  if (token > step) return "future";
  return token >= first ? "made" : "";
}
