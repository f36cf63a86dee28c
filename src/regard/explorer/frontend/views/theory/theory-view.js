// The Theory view: experiments with sliders, which compare formulas with computed numbers.

import { button, element, replaceContent, slider } from "../../lib/element.js";
import { formatNumber, formatProgress } from "../../lib/format.js";
import { effectiveTheme } from "../../state/theme.js";
import { claimLists } from "./claim-lists.js";
import { panelFigure } from "./panel-figure.js";
import { pointAnimationFigure } from "./point-animation.js";

/** @import { Context, Endpoints, Experiment, ExperimentList, Settings } from "../../lib/types.js" */

/**
 * @typedef {Object} Parts
 * @property {HTMLElement} list
 * @property {HTMLElement} intro
 * @property {HTMLFormElement} form
 * @property {HTMLElement} status
 * @property {HTMLElement} body
 * @property {Experiment[]} experiments
 * @property {ExperimentList["completed_runs"]} completedRuns
 * @property {Settings} settings
 * @property {number} seed
 * @property {number} requestId
 * @property {Endpoints["experiment"] | null} result
 * @property {ReturnType<typeof pointAnimationFigure> | null} animation
 */

/** @param {Context} context */
export function theoryView(context) {
  /** @type {Parts} */
  const parts = {
    list: element("nav", { class: "experiment-list", "aria-label": "Experiments" }),
    intro: element("div", { class: "intro" }),
    form: element("form", { class: "option-row" }),
    status: element("span", { class: "status-text", role: "status" }),
    body: element("div", { class: "experiment-result" }),
    experiments: [],
    completedRuns: [],
    settings: {},
    seed: 0,
    requestId: 0,
    result: null,
    animation: null,
  };
  context.subscribe((_, changed) => {
    if (changed.has("experiment")) openExperiment(context, parts);
    else if (changed.has("theme") || changed.has("isDarkEnvironment")) draw(context, parts);
  });
  context.end(() => {
    parts.requestId += 1; // ignores later responses
    parts.animation?.end();
  });
  begin(context, parts);
  return element(
    "section",
    { class: "view theory-view", "aria-label": "Theory" },
    parts.list,
    element("div", { class: "experiment" }, parts.intro, parts.form, parts.body),
  );
}

/**
 * @param {Context} context
 * @param {Parts} parts
 */
async function begin(context, parts) {
  try {
    const { values } = await context.request("experiments", {});
    parts.completedRuns = values.completed_runs;
    const isFile = context.source.kind === "file";
    /** @param {Experiment} experiment */
    const hasRun = ({ name }) => values.completed_runs.some((run) => run.name === name);
    parts.experiments = isFile ? values.experiments.filter(hasRun) : values.experiments;
    if (parts.experiments.length) openExperiment(context, parts);
    else replaceContent(parts.intro, element("p", {}, NO_EXPERIMENT_HINT));
  } catch (error) {
    context.showError(error);
  }
}

const NO_EXPERIMENT_HINT =
  "This file contains no experiments, because none was run before the export. Use regard explore or regard theory.";

/**
 * Shows an experiment and runs it with its quick settings; an exported file shows the run that it contains.
 * @param {Context} context
 * @param {Parts} parts
 */
function openExperiment(context, parts) {
  const experiment = selectedExperiment(context, parts);
  if (!experiment) return;
  const stored = parts.completedRuns.filter((run) => run.name === experiment.name).at(-1);
  const run = context.source.kind === "file" ? stored : undefined;
  parts.settings = { ...(run?.settings ?? { ...experiment.default_settings, ...experiment.quick_settings }) };
  parts.seed = run?.seed ?? 0;
  drawList(context, parts, experiment);
  replaceContent(parts.intro, element("h2", {}, experiment.name), element("p", {}, experiment.description));
  drawForm(context, parts, experiment);
  runExperiment(context, parts, experiment);
}

/**
 * @param {Context} context
 * @param {Parts} parts
 */
function selectedExperiment({ store }, { experiments }) {
  return experiments.find(({ name }) => name === store.get().experiment) ?? experiments[0];
}

/**
 * @param {Context} context
 * @param {Parts} parts
 * @param {Experiment} selected
 */
function drawList({ store }, { list, experiments }, selected) {
  replaceContent(
    list,
    experiments.map(({ name, description }) =>
      button(name, () => store.set({ experiment: name }), {
        class: "quiet-button",
        title: description,
        "aria-current": name === selected.name ? "true" : null,
        "data-experiment": name,
      }),
    ),
  );
}

/**
 * The sliders of the settings, the seed, and the buttons that run the experiment.
 * @param {Context} context
 * @param {Parts} parts
 * @param {Experiment} experiment
 */
function drawForm(context, parts, experiment) {
  const { form, settings, status } = parts;
  if (context.source.kind === "file") {
    const values = Object.entries(settings).map(([name, value]) => `${name} = ${value}`);
    replaceContent(
      form,
      element(
        "p",
        { class: "hint" },
        `Settings of this run: ${[...values, `seed = ${parts.seed}`].join(", ")}. To run it again, use regard explore.`,
      ),
    );
    return;
  }
  const sliders = experiment.sliders.map(({ name, description, low, high, step, is_integer }) => {
    /** @param {number} x */
    const format = (x) => (is_integer ? String(x) : formatNumber(x, 2));
    const node = slider(name, [low, high, step], settings[name], format, (x) => {
      settings[name] = x;
    });
    node.title = description;
    return { name, node };
  });
  const seed = element("input", {
    type: "number",
    min: 0,
    class: "short-input",
    "aria-label": "Seed",
    value: parts.seed,
  });
  /** @param {Settings} values */
  const setSettings = (values) => {
    Object.assign(settings, values);
    for (const { name, node } of sliders) node.setValue(settings[name]);
  };
  const run = element("button", { type: "submit", class: "primary" }, "Run");
  const runInFull = button("Run in full", () => {
    setSettings(experiment.default_settings);
    form.requestSubmit();
  });
  runInFull.title = "Uses the settings of the documentation; takes up to half a minute";
  form.onsubmit = (event) => {
    event.preventDefault();
    parts.seed = Math.max(0, Math.round(Number(seed.value)) || 0);
    runExperiment(context, parts, experiment);
  };
  replaceContent(
    form,
    sliders.map(({ node }) => node),
    element("label", { class: "field" }, "Seed ", seed),
    run,
    runInFull,
    status,
  );
}

/**
 * @param {Context} context
 * @param {Parts} parts
 * @param {Experiment} experiment
 */
async function runExperiment(context, parts, experiment) {
  parts.requestId += 1;
  const requestId = parts.requestId;
  /**
   * @param {string} text
   * @param {number | null} [fraction]
   */
  const showStatus = (text, fraction) => {
    if (requestId === parts.requestId) parts.status.textContent = formatProgress(text, fraction ?? 0);
  };
  parts.body.classList.add("is-loading");
  showStatus("Running", 0);
  try {
    const params = { name: experiment.name, settings: { ...parts.settings }, seed: parts.seed };
    const response = await context.requestCache.requestWithProgress("experiment", params, showStatus);
    if (requestId !== parts.requestId) return;
    parts.result = response;
    draw(context, parts);
    context.announce(
      `${experiment.name}: ${response.values.is_consistent ? "all claims hold" : "a claim fails, or a known-wrong formula holds"}.`,
    );
  } catch (error) {
    if (requestId === parts.requestId) context.showError(error);
  } finally {
    if (requestId === parts.requestId) {
      showStatus("");
      parts.body.classList.remove("is-loading");
    }
  }
}

/**
 * @param {Context} context
 * @param {Parts} parts
 */
function draw(context, parts) {
  if (!parts.result) return;
  const { values, arrays } = parts.result;
  const theme = effectiveTheme(context.store.get());
  parts.animation?.end();
  parts.animation = values.animation ? pointAnimationFigure(context, values.animation, arrays.points) : null;
  replaceContent(
    parts.body,
    element(
      "p",
      { class: "verdict", "data-is-consistent": String(values.is_consistent) },
      element("b", { class: values.is_consistent ? "is-true" : "is-false" }, values.is_consistent ? "✓ " : "✕ "),
      values.is_consistent
        ? "The computed numbers agree with every claim and with none of the known-wrong formulas."
        : "A claim fails, or a known-wrong formula holds; see below.",
    ),
    element(
      "div",
      { class: "theory-panels" },
      parts.animation?.node ?? null,
      values.panels.map((panel) => panelFigure(panel, arrays, theme)),
    ),
    claimLists(values),
  );
  parts.animation?.draw();
}
