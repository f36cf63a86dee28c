// The Generate view: the model continues the text; each step shows the row of weights that predicted the token.

import { button, element, replaceContent, slider } from "../../lib/element.js";
import { tokenLabel, formatNumber } from "../../lib/format.js";
import { headToolbar } from "../../widgets/head-toolbar.js";
import { barList, topKeysList } from "../../widgets/top-tokens.js";
import { sqrtScale } from "../../lib/color/color-scale.js";
import { selectLayer, selectSession, selectTokens } from "../../state/selectors.js";
import { probabilityStrip } from "./probability-strip.js";
import { TokenFlow } from "../../widgets/token-flow.js";

const PLAYBACK_STEP_MS = 700;
const MIN_SHADED_WEIGHT = 0.003;

export function generateView(context) {
  const { store } = context;
  const flow = new TokenFlow({
    label: "The text with the generated tokens. Enter on a generated token goes to its step.",
    point: () => {},
    pick: (item) => {
      if (selectGeneration(store.get())) goToStep(context, item.first);
    },
    span: () => {},
    clear: () => {},
  });
  const parts = {
    flow,
    playback: element("div", { class: "playback-bar" }),
    sidebar: element("aside", { class: "sidebar" }),
    form: element("form", { class: "option-row" }),
    weights: null,
    requestId: "",
    playTimer: 0,
  };
  createForm(context, parts);
  context.subscribe((_, changed) => {
    const has = (...names) => names.some((name) => changed.has(name));
    if (has("serverState", "session")) build(context, parts);
    else if (has("generationStep", "layer", "head")) update(context, parts);
  });
  context.end(() => {
    clearInterval(parts.playTimer);
    flow.dispose();
  });
  build(context, parts);
  return element(
    "section",
    { class: "view generate-view", "aria-label": "Generate" },
    headToolbar(context, parts.form),
    parts.playback,
    element("div", { class: "two-columns" }, element("div", { class: "panes" }, flow.node), parts.sidebar),
  );
}

function selectGeneration(state) {
  return selectSession(state)?.generation ?? null;
}

function createForm(context, parts) {
  const options = { max_new_tokens: 24, temperature: 0 };
  const submit = element("button", { type: "submit", class: "primary" }, "Generate");
  const count = slider("New tokens", [1, 128, 1], options.max_new_tokens, String, (n) => {
    options.max_new_tokens = n;
  });
  const temperature = slider(
    "Temperature",
    [0, 2, 0.1],
    options.temperature,
    (x) => (x ? formatNumber(x, 1) : "0 (greedy)"),
    (x) => {
      options.temperature = x;
    },
  );
  const seed = element("input", { type: "number", min: 0, value: 0, "aria-label": "Seed", class: "short-input" });
  parts.form.append(count, temperature, element("label", { class: "field" }, "Seed ", seed), submit);
  parts.form.addEventListener("submit", async (event) => {
    event.preventDefault();
    submit.disabled = true;
    try {
      const { session } = context.store.get();
      const { values } = await context.requestCache.requestWithProgress(
        "generate",
        { session, ...options, seed: Number(seed.value) || 0 },
        context.showProgress,
      );
      await context.refresh({
        session: values.id,
        generationStep: values.first_position,
        hoveredCell: null,
        query: null,
        key: null,
        pinnedTokens: [],
        viewport: null,
      });
    } catch (error) {
      context.showError(error);
    } finally {
      submit.disabled = false;
      context.showProgress("");
    }
  });
}

function build(context, parts) {
  const state = context.store.get();
  const session = selectSession(state);
  const generation = selectGeneration(state);
  const { columns, columnParts } = selectTokens(session, selectLayer(state));
  parts.flow.show(columns, { parts: columnParts });
  parts.form.hidden = !session.can_generate;
  clearInterval(parts.playTimer);
  parts.playTimer = 0;
  if (!generation) {
    replaceContent(
      parts.playback,
      element(
        "p",
        { class: "hint boxed" },
        session.can_generate
          ? "Press Generate: the model continues the text, and each step shows the weights that predicted the token."
          : "This recording has no model that can generate text.",
      ),
    );
    replaceContent(parts.sidebar);
    parts.flow.setTokenMarks(() => null);
    return;
  }
  const last = generation.first_position + generation.steps.length - 1;
  const stepSlider = slider(
    "Step",
    [generation.first_position, last, 1],
    state.generationStep ?? generation.first_position,
    (n) => `${n - generation.first_position + 1} of ${generation.steps.length}`,
    (n) => goToStep(context, n),
  );
  parts.stepSlider = stepSlider;
  const play = button(
    "Play",
    () => {
      if (parts.playTimer) return stop(parts, play);
      play.textContent = "Pause";
      parts.playTimer = setInterval(() => {
        const step = context.store.get().generationStep ?? generation.first_position;
        if (step >= last) stop(parts, play);
        else goToStep(context, step + 1);
      }, PLAYBACK_STEP_MS);
      return undefined;
    },
    { id: "play" },
  );
  parts.strip = probabilityStrip(generation.steps, (position) => goToStep(context, position));
  replaceContent(parts.playback, play, stepSlider, parts.strip);
  const step = state.generationStep;
  if (step === null || step < generation.first_position || step > last)
    context.store.set({ generationStep: generation.first_position });
  parts.requestId = "";
  update(context, parts);
}

function stop(parts, play) {
  clearInterval(parts.playTimer);
  parts.playTimer = 0;
  play.textContent = "Play";
}

/** Selects the step that generated the token at a position. */
function goToStep(context, position) {
  const generation = selectGeneration(context.store.get());
  const last = generation.first_position + generation.steps.length - 1;
  context.store.set({ generationStep: Math.max(generation.first_position, Math.min(last, position)) });
}

/** Requests the row of weights that predicted the token of the step: the row of the previous token. */
async function update(context, parts) {
  const state = context.store.get();
  const generation = selectGeneration(state);
  if (!generation || state.generationStep === null) return;
  parts.stepSlider.setValue(state.generationStep);
  parts.strip.mark(state.generationStep);
  const layer = selectLayer(state);
  const query = state.generationStep - 1 - layer.query_offset;
  const requestId = `${state.stateVersion} ${state.session} ${layer.index} ${state.head} ${query}`;
  const isInside = query >= 0 && query < layer.num_queries;
  if (requestId !== parts.requestId) parts.weights = null; // they belong to another step
  if (requestId !== parts.requestId && isInside) {
    parts.requestId = requestId;
    try {
      const { arrays } = await context.request("query_weights", {
        session: state.session,
        layer: layer.index,
        heads: [state.head],
        queries: [query],
      });
      if (parts.requestId !== requestId) return;
      parts.weights = arrays.mean.data;
    } catch (error) {
      context.showError(error);
      return;
    }
  }
  draw(context, parts, generation);
}

function draw(context, { flow, sidebar, weights }, generation) {
  const state = context.store.get();
  const { columnLabels } = selectTokens(selectSession(state), selectLayer(state));
  const row = weights ? weights.subarray(0, state.generationStep) : null;
  flow.setTokenMarks(({ first }) => ({
    keyShade: row && row[first] > MIN_SHADED_WEIGHT ? sqrtScale(row[first]) : 0,
    queryShade: 0,
    state: tokenStateAtStep(first, state.generationStep, generation.first_position),
  }));
  flow.reveal(state.generationStep);
  const step = generation.steps[state.generationStep - generation.first_position];
  const probability = formatNumber(step.probability, 3);
  replaceContent(
    sidebar,
    element(
      "h3",
      { class: "selection-title" },
      tokenLabel(step.text),
      element("small", {}, ` token ${state.generationStep}`),
    ),
    element(
      "p",
      { class: "hint" },
      "Generated with probability ",
      element("b", { "data-value": step.probability }, probability),
      ". The shading shows the weights of the previous token, which predicted it.",
    ),
    barList(
      "most likely tokens",
      "query-color",
      step.top_tokens.map(([text, value]) => ({ text, value, first: null })),
      "probabilities",
    ),
    row ? topKeysList(row, columnLabels) : null,
  );
  const n = state.generationStep - generation.first_position + 1;
  context.announce(`Step ${n}: ${tokenLabel(step.text)}, probability ${probability}.`);
}

/** The state of a token at a step: generated now, the query that predicts it, later, generated before, or input. */
function tokenStateAtStep(token, step, first) {
  if (token === step) return "key";
  if (token === step - 1) return "query";
  if (token > step) return "future";
  return token >= first ? "generated" : "";
}
