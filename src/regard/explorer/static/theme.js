// Light or dark: what the system prefers, unless somebody chose.

const NEXT = { auto: "light", light: "dark", dark: "auto" };

/** The theme that a state means now. */
export function themeOf(state) {
  if (state.theme !== "auto") return state.theme;
  return isDark() ? "dark" : "light";
}

/** Whether it is dark around the page: notebooks have themes of their own, else the system says it. */
function isDark() {
  const { jpThemeLight, vscodeThemeKind = "" } = document.body.dataset;
  if (jpThemeLight !== undefined) return jpThemeLight === "false";
  if (vscodeThemeKind) return vscodeThemeKind.includes("dark");
  return window.matchMedia("(prefers-color-scheme: dark)").matches;
}

/** Puts the theme on an element, now and whenever it changes. */
export function keepTheme(root, store) {
  const put = () => {
    root.dataset.theme = themeOf(store.get());
  };
  const query = window.matchMedia("(prefers-color-scheme: dark)");
  const changed = () => {
    put();
    store.set({ dusk: isDark() });
  };
  query.addEventListener("change", changed);
  const watch = new MutationObserver(changed);
  watch.observe(document.body, { attributeFilter: ["data-jp-theme-light", "data-vscode-theme-kind"] });
  const end = store.listen((_, names) => {
    if (names.has("theme")) put();
  });
  put();
  return () => {
    query.removeEventListener("change", changed);
    watch.disconnect();
    end();
  };
}

export function nextTheme(theme) {
  return NEXT[theme] ?? "auto";
}
