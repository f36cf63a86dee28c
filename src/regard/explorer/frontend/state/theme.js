// The light or dark theme: the system's preference, unless a theme is selected.

/** @import { State, Store, Theme, ThemeChoice } from "../lib/types.js" */

/** @type {Record<ThemeChoice, ThemeChoice>} */
const NEXT = { auto: "light", light: "dark", dark: "auto" };

/**
 * The theme in effect.
 * @param {State} state
 * @returns {Theme}
 */
export function effectiveTheme(state) {
  if (state.theme !== "auto") return state.theme;
  return isDark() ? "dark" : "light";
}

/** Whether the environment is dark: by the notebook's theme, else by the system's. */
function isDark() {
  const { jpThemeLight, vscodeThemeKind = "" } = document.body.dataset;
  if (jpThemeLight !== undefined) return jpThemeLight === "false";
  if (vscodeThemeKind) return vscodeThemeKind.includes("dark");
  return window.matchMedia("(prefers-color-scheme: dark)").matches;
}

/**
 * Sets the theme of an element, now and at every change; returns a function that stops this.
 * @param {HTMLElement} root
 * @param {Store<State>} store
 */
export function applyTheme(root, store) {
  const update = () => {
    root.dataset.theme = effectiveTheme(store.get());
  };
  const query = window.matchMedia("(prefers-color-scheme: dark)");
  const onEnvironmentChange = () => {
    update();
    store.set({ isDarkEnvironment: isDark() });
  };
  query.addEventListener("change", onEnvironmentChange);
  const observer = new MutationObserver(onEnvironmentChange);
  observer.observe(document.body, { attributeFilter: ["data-jp-theme-light", "data-vscode-theme-kind"] });
  const end = store.subscribe((_, names) => {
    if (names.has("theme")) update();
  });
  update();
  return () => {
    query.removeEventListener("change", onEnvironmentChange);
    observer.disconnect();
    end();
  };
}

/**
 * The theme that the toggle selects next.
 * @param {ThemeChoice} theme
 */
export function nextTheme(theme) {
  return NEXT[theme] ?? "auto";
}
