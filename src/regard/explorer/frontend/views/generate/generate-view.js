// The Generate view: the model continues the text; each step shows the row of weights that predicted the token.

import { sqrtScale } from "../../lib/color/color-scale.js";
import { button, element, replaceContent, slider } from "../../lib/element.js";
import { formatNumber, tokenLabel } from "../../lib/format.js";
import { selectHead, selectSession, selectTokens } from "../../state/selectors.js";
import { headToolbar } from "../../widgets/head-toolbar.js";
import { TokenFlow } from "../../widgets/token-flow.js";
import { barList, topKeysList } from "../../widgets/top-tokens.js";
import { probabilityStrip } from "./probability-strip.js";
import { tokenStateAtStep } from "./token-state.js";

/**
 * @import { Slider } from "../../lib/element.js"
 * @import { Context, Generation, State } from "../../lib/types.js"
 */

const PLAYBACK_STEP_MS = 700;
const MIN_SHADED_WEIGHT = 0.003;

/**
 * @typedef {Object} Parts
 * @property {TokenFlow} flow
 * @property {HTMLElement} playback
 * @property {HTMLElement} sidebar
 * @property {HTMLFormElement} form
 * @property {Float32Array | null} weights of the step
 * @property {string} requestId
 * @property {ReturnType<typeof setInterval> | undefined} playTimer set during playback
 * @property {Slider | null} stepSlider
 * @property {ReturnType<typeof probabilityStrip> | null} strip
 */

/** @param {Context} context */
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
  /** @type {Parts} */
  const parts = {
    flow,
    playback: element("div", { class: "playback-bar" }),
    sidebar: element("aside", { class: "sidebar" }),
    form: element("form", { class: "option-row" }),
    weights: null,
    requestId: "",
    playTimer: undefined,
    stepSlider: null,
    strip: null,
  };
  createForm(context, parts);
  context.subscribe((_, changed) => {
    /** @param {...string} names */
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

/** @param {State} state */
function selectGeneration(state) {
  return selectSession(state)?.generation ?? null;
}

/**
 * @param {Context} context
 * @param {Parts} parts
 */
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

/**
 * @param {Context} context
 * @param {Parts} parts
 */
function build(context, parts) {
  const state = context.store.get();
  const { session, layer } = selectHead(state);
  const generation = selectGeneration(state);
  const { columns, columnParts } = selectTokens(session, layer);
  parts.flow.show(columns, { parts: columnParts });
  parts.form.hidden = !session.can_generate;
  clearInterval(parts.playTimer);
  parts.playTimer = undefined;
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
      if (parts.playTimer) {
        stop(parts, play);
        return;
      }
      play.textContent = "Pause";
      parts.playTimer = setInterval(() => {
        const step = context.store.get().generationStep ?? generation.first_position;
        if (step >= last) stop(parts, play);
        else goToStep(context, step + 1);
      }, PLAYBACK_STEP_MS);
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

/**
 * @param {Parts} parts
 * @param {HTMLElement} play
 */
function stop(parts, play) {
  clearInterval(parts.playTimer);
  parts.playTimer = undefined;
  play.textContent = "Play";
}

/**
 * Selects the step that generated the token at a position.
 * @param {Context} context
 * @param {number} position
 */
function goToStep(context, position) {
  const generation = selectGeneration(context.store.get());
  if (!generation) return;
  const last = generation.first_position + generation.steps.length - 1;
  context.store.set({ generationStep: Math.max(generation.first_position, Math.min(last, position)) });
}

/**
 * Requests the row of weights that predicted the token of the step: the row of the previous token.
 * @param {Context} context
 * @param {Parts} parts
 */
async function update(context, parts) {
  const state = context.store.get();
  const generation = selectGeneration(state);
  if (!generation || state.generationStep === null) return;
  parts.stepSlider?.setValue(state.generationStep);
  parts.strip?.mark(state.generationStep);
  const { layer } = selectHead(state);
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

/**
 * @param {Context} context
 * @param {Parts} parts
 * @param {Generation} generation
 */
function draw(context, { flow, sidebar, weights }, generation) {
  const state = context.store.get();
  const { session, layer } = selectHead(state);
  const { columnLabels } = selectTokens(session, layer);
  const position = state.generationStep ?? generation.first_position;
  const row = weights ? weights.subarray(0, position) : null;
  flow.setTokenMarks(({ first }) => ({
    keyShade: row && row[first] > MIN_SHADED_WEIGHT ? sqrtScale(row[first]) : 0,
    queryShade: 0,
    state: tokenStateAtStep(first, position, generation.first_position),
  }));
  flow.reveal(position);
  const step = generation.steps[position - generation.first_position];
  const probability = formatNumber(step.probability, 3);
  replaceContent(
    sidebar,
    element("h3", { class: "selection-title" }, tokenLabel(step.text), element("small", {}, ` token ${position}`)),
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
  const n = position - generation.first_position + 1;
  context.announce(`Step ${n}: ${tokenLabel(step.text)}, probability ${probability}.`);
}
