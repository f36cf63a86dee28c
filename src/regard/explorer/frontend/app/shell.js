// The page around the views: logo, text form, tabs, notices and the live region of screen readers.

import { button, element, replaceContent, svgElement } from "../lib/element.js";
import { formatProgress, pluralize } from "../lib/format.js";
import { selectSession } from "../state/selectors.js";
import { nextTheme } from "../state/theme.js";
import { exportMenu } from "./export-menu.js";
import { alertBox, connectionNotice } from "./notices.js";
import { sessionMenu } from "./session-menu.js";
import { VIEWS } from "./view-list.js";

/** @import { PageContext, Session, State } from "../lib/types.js" */

const THEMES = { auto: "System", light: "Light", dark: "Dark" };

/** @param {PageContext} context */
export function createShell(context) {
  const main = element("main", { class: "main", tabindex: -1 });
  const live = element("div", { class: "sr-only", role: "status", "aria-live": "polite" });
  context.announce = (text) => {
    live.textContent = text;
  };
  const notices = [connectionNotice(context), alertBox(context)];
  const node = element("div", { class: "page" }, header(context), tabs(context), notices, main, live);
  return { node, main };
}

/** @param {PageContext} context */
function header(context) {
  const node = element(
    "header",
    { class: "page-header" },
    element("a", { class: "brand", href: "#", onclick: (event) => showOverview(event, context) }, logo(), "regard"),
  );
  if (context.source.kind === "server") node.append(textForm(context));
  else node.append(sessionTitle(context));
  const texts = context.source.kind === "server" ? sessionMenu(context) : null;
  node.append(element("div", { class: "tools" }, texts, exportMenu(context), themeToggle(context)));
  return node;
}

/**
 * @param {Event} event
 * @param {PageContext} context
 */
function showOverview(event, { store }) {
  event.preventDefault();
  store.set({ view: "overview" });
}

/** The logo: a 3 × 3 causal attention matrix. */
function logo() {
  const KEY_CELL = 2; // drawn in the color of keys
  const cells = [
    [0, 0, 1],
    [0, 1, KEY_CELL],
    [1, 1, 0.45],
    [0, 2, 0.45],
    [1, 2, 1],
    [2, 2, 0.25],
  ];
  return svgElement(
    "svg",
    { viewBox: "0 0 16 16", class: "logo", "aria-hidden": "true" },
    cells.map(([x, y, opacity]) =>
      svgElement("rect", {
        x: 1 + 5 * x,
        y: 1 + 5 * y,
        width: 4,
        height: 4,
        rx: 1,
        class: opacity === KEY_CELL ? "key-color" : "query-color",
        opacity: Math.min(1, opacity),
      }),
    ),
  );
}

/**
 * The form with the text, the model and the Run button.
 * @param {PageContext} context
 */
function textForm(context) {
  const { store } = context;
  const text = element("textarea", {
    rows: 1,
    "aria-label": "Text for the model",
    placeholder: "Type a sentence to see what each token attends to",
    spellcheck: "false",
    id: "text-input",
  });
  const model = element("select", { "aria-label": "Model" });
  const runButton = element("button", { type: "submit", class: "primary" }, "Run");
  const status = element("span", { class: "status", role: "status" });
  const form = element(
    "form",
    { class: "text-form" },
    element("div", { class: "text-form-field" }, text),
    model,
    runButton,
    status,
  );
  /** @param {Event} event */
  const submit = async (event) => {
    event?.preventDefault();
    if (!text.value.trim()) return text.focus();
    runButton.disabled = true;
    try {
      await context.runModel(text.value, model.value);
    } catch (error) {
      context.showError(error);
    } finally {
      runButton.disabled = false;
    }
    return undefined;
  };
  form.addEventListener("submit", submit);
  text.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey) submit(event);
  });
  context.showProgress = (message, fraction) => {
    status.textContent = formatProgress(message, fraction);
  };
  store.subscribe((state, changed) => {
    if (state.serverState && (changed.has("serverState") || changed.has("session"))) fillTextForm(state, text, model);
  });
  return form;
}

const MAX_FORM_CHARACTERS = 20_000; // longer texts are cut in the form

/**
 * @param {State} state
 * @param {HTMLTextAreaElement} text
 * @param {HTMLSelectElement} model
 */
function fillTextForm(state, text, model) {
  const session = selectSession(state);
  const selectedModel = session?.model || model.value;
  replaceContent(
    model,
    (state.serverState?.models ?? []).map(({ name, title }) => element("option", { value: name, title }, name)),
  );
  if (selectedModel) model.value = selectedModel;
  if (session?.text && document.activeElement !== text) text.value = session.text.slice(0, MAX_FORM_CHARACTERS);
}

/**
 * The title of the session, where there is no text form.
 * @param {PageContext} context
 */
function sessionTitle(context) {
  const node = element("div", { class: "spacer session-title" });
  const status = element("span", { class: "status", role: "status" });
  context.showProgress = (message) => {
    status.textContent = message ? ` ${message}…` : "";
  };
  context.store.subscribe((state) => replaceContent(node, selectSession(state)?.title ?? "", status));
  return node;
}

/** @param {PageContext} context */
function themeToggle({ store }) {
  const node = button("", () => store.set({ theme: nextTheme(store.get().theme) }), {
    class: "quiet-button theme-toggle",
  });
  const draw = () => {
    const label = `Theme: ${THEMES[store.get().theme]}`;
    node.setAttribute("aria-label", label);
    node.title = label;
    replaceContent(
      node,
      svgElement(
        "svg",
        { viewBox: "0 0 16 16", "aria-hidden": "true" },
        svgElement("circle", { cx: 8, cy: 8, r: 6, fill: "none", stroke: "currentColor", "stroke-width": 1.4 }),
        svgElement("path", { d: store.get().theme === "light" ? "" : "M8 2a6 6 0 0 1 0 12z", fill: "currentColor" }),
        store.get().theme === "dark" ? svgElement("circle", { cx: 8, cy: 8, r: 6, fill: "currentColor" }) : null,
      ),
    );
  };
  store.subscribe((_, changed) => {
    if (changed.has("theme")) draw();
  });
  draw();
  return node;
}

/** @param {PageContext} context */
function tabs({ store, source }) {
  const links = VIEWS.map(({ name, title }) =>
    element(
      "a",
      {
        href: `#view=${name}`,
        "data-view": name,
        onclick: (event) => {
          event.preventDefault();
          store.set({ view: name });
        },
      },
      title,
    ),
  );
  const summaryText = element("span", { class: "session-summary" });
  const draw = () => {
    const state = store.get();
    for (const link of links) {
      if (link.dataset.view === state.view) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    links.find((link) => link.dataset.view === state.view)?.scrollIntoView?.({ block: "nearest", inline: "nearest" });
    const session = selectSession(state);
    summaryText.textContent = summary(session);
    if (source.kind !== "widget") document.title = session?.title ? `${session.title} · regard` : "regard";
  };
  store.subscribe((_, changed) => {
    if (["view", "serverState", "session"].some((name) => changed.has(name))) draw();
  });
  draw();
  const tabLinks = element("div", { class: "tab-links" }, links);
  return element("nav", { class: "tabs", "aria-label": "Views" }, tabLinks, summaryText);
}

/** @param {Session | undefined} session */
function summary(session) {
  if (!session) return "";
  const heads = session.layers.reduce((sum, layer) => sum + layer.head_indices.length, 0);
  const tokens = session.texts.map((text) => pluralize(text.tokens.length, "token")).join(" and ");
  const size = `${pluralize(session.layers.length, "layer")}, ${pluralize(heads, "head")}`;
  return `${session.model || session.title} · ${size} · ${tokens}`;
}
