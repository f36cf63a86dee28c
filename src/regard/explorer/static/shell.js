// What stays around every view: the name, the sentence, the list of views, and where errors and numbers are told.

import { button, drawn, element, refill } from "./element.js";
import { exportMenu } from "./exporting.js";
import { count } from "./format.js";
import { alertBox, connectionNote } from "./notices.js";
import { run } from "./running.js";
import { shownOf } from "./subject.js";
import { textsMenu } from "./texts-menu.js";
import { nextTheme } from "./theme.js";
import { VIEWS } from "./views.js";

const THEMES = { auto: "As the system", light: "Light", dark: "Dark" };

export function shell(context) {
  const main = element("main", { class: "main", tabindex: -1 });
  const live = element("div", { class: "sr-only", role: "status", "aria-live": "polite" });
  context.say = (text) => {
    live.textContent = text;
  };
  const notices = [connectionNote(context), alertBox(context)];
  const node = element("div", { class: "page" }, header(context), tabs(context), notices, main, live);
  return { node, main };
}

function header(context) {
  const top = element(
    "header",
    { class: "top" },
    element("a", { class: "name", href: "#", onclick: (e) => home(e, context) }, mark(), "regard"),
  );
  if (context.source.kind === "server") top.append(sentence(context));
  else top.append(title(context));
  const texts = context.source.kind === "server" ? textsMenu(context) : null;
  top.append(element("div", { class: "tools" }, texts, exportMenu(context), themeSwitch(context)));
  return top;
}

function home(event, { store }) {
  event.preventDefault();
  store.set({ view: "overview" });
}

/** A small matrix that is being looked at. */
function mark() {
  const cells = [
    [0, 0, 1],
    [0, 1, 2],
    [1, 1, 0.45],
    [0, 2, 0.45],
    [1, 2, 1],
    [2, 2, 0.25],
  ];
  return drawn(
    "svg",
    { viewBox: "0 0 16 16", class: "mark", "aria-hidden": "true" },
    cells.map(([x, y, share]) =>
      drawn("rect", {
        x: 1 + 5 * x,
        y: 1 + 5 * y,
        width: 4,
        height: 4,
        rx: 1,
        class: share === 2 ? "of-key" : "of-query",
        opacity: Math.min(1, share),
      }),
    ),
  );
}

/** The form in which a sentence is typed. */
function sentence(context) {
  const { store } = context;
  const text = element("textarea", {
    rows: 1,
    "aria-label": "Text for the model to read",
    placeholder: "Type a sentence, and see what each token looks at",
    spellcheck: "false",
    id: "sentence",
  });
  const model = element("select", { "aria-label": "Model" });
  const go = element("button", { type: "submit", class: "primary" }, "Look");
  const status = element("span", { class: "status", role: "status" });
  const form = element("form", { class: "sentence" }, element("div", { class: "typed" }, text), model, go, status);
  const submit = async (event) => {
    event?.preventDefault();
    if (!text.value.trim()) return text.focus();
    go.disabled = true;
    try {
      await run(context, text.value, model.value);
    } catch (error) {
      context.fail(error);
    } finally {
      go.disabled = false;
    }
    return undefined;
  };
  form.addEventListener("submit", submit);
  text.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey) submit(event);
  });
  context.status = (words, share) => {
    status.textContent = words
      ? `${words}${share === null || share === undefined ? " …" : `, ${Math.round(100 * share)} %`}`
      : "";
  };
  store.listen((state, changed) => {
    if (state.world && (changed.has("world") || changed.has("shown"))) fill(state, text, model);
  });
  return form;
}

const LONGEST = 20_000; // letters that are put into the form

function fill(state, text, model) {
  const chosen = shownOf(state)?.model || model.value;
  refill(
    model,
    state.world.models.map(({ name, title: words }) => element("option", { value: name, title: words }, name)),
  );
  if (chosen) model.value = chosen;
  const typed = shownOf(state)?.text;
  if (typed && document.activeElement !== text) text.value = typed.slice(0, LONGEST);
}

function title(context) {
  const node = element("div", { class: "grow title" });
  const status = element("span", { class: "status", role: "status" });
  context.status = (words) => {
    status.textContent = words ? ` ${words} …` : "";
  };
  context.store.listen((state) => refill(node, shownOf(state)?.title ?? "", status));
  return node;
}

function themeSwitch({ store }) {
  const node = button("", () => store.set({ theme: nextTheme(store.get().theme) }), { class: "quiet theme" });
  const draw = () => {
    const words = `Colours: ${THEMES[store.get().theme]}`;
    node.setAttribute("aria-label", words);
    node.title = words;
    refill(
      node,
      drawn(
        "svg",
        { viewBox: "0 0 16 16", "aria-hidden": "true" },
        drawn("circle", { cx: 8, cy: 8, r: 6, fill: "none", stroke: "currentColor", "stroke-width": 1.4 }),
        drawn("path", { d: store.get().theme === "light" ? "" : "M8 2a6 6 0 0 1 0 12z", fill: "currentColor" }),
        store.get().theme === "dark" ? drawn("circle", { cx: 8, cy: 8, r: 6, fill: "currentColor" }) : null,
      ),
    );
  };
  store.listen((_, changed) => {
    if (changed.has("theme")) draw();
  });
  draw();
  return node;
}

function tabs({ store }) {
  const links = VIEWS.map(({ name, title: words }) =>
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
      words,
    ),
  );
  const about = element("span", { class: "about" });
  const draw = () => {
    const state = store.get();
    for (const link of links) {
      if (link.dataset.view === state.view) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    links.find((link) => link.dataset.view === state.view)?.scrollIntoView?.({ block: "nearest", inline: "nearest" });
    about.textContent = summary(shownOf(state));
  };
  store.listen((_, changed) => {
    if (["view", "world", "shown"].some((name) => changed.has(name))) draw();
  });
  draw();
  return element("nav", { class: "tabs", "aria-label": "Views" }, element("div", { class: "links" }, links), about);
}

function summary(shown) {
  if (!shown) return "";
  const heads = shown.layers.reduce((sum, layer) => sum + layer.heads.length, 0);
  const tokens = shown.texts.map((text) => count(text.tokens.length)).join(" and ");
  const counted = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;
  const size = `${counted(shown.layers.length, "layer")}, ${counted(heads, "head")}`;
  return `${shown.model || shown.title} · ${size} · ${tokens} tokens`;
}
