// The light or dark theme: the system's preference, unless a theme is selected.

const NEXT = { auto: "light", light: "dark", dark: "auto" };

/** The theme in effect: "light" or "dark". */
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

/** Sets the theme of an element, now and at every change; returns a function that stops this. */
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

/** The theme that the toggle selects next. */
export function nextTheme(theme) {
  return NEXT[theme] ?? "auto";
}
