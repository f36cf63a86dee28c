// Light or dark: what the system prefers, unless somebody chose.

const NEXT = { auto: "light", light: "dark", dark: "auto" };

/** The theme that a state means now. */
export function themeOf(state) {
  if (state.theme !== "auto") return state.theme;
  return window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

/** Puts the theme on an element, now and whenever it changes. */
export function keepTheme(root, store) {
  const put = () => {
    root.dataset.theme = themeOf(store.get());
  };
  const query = window.matchMedia("(prefers-color-scheme: dark)");
  const changed = () => {
    put();
    store.set({ dusk: query.matches });
  };
  query.addEventListener("change", changed);
  const end = store.listen((_, names) => {
    if (names.has("theme")) put();
  });
  put();
  return () => {
    query.removeEventListener("change", changed);
    end();
  };
}

export function nextTheme(theme) {
  return NEXT[theme] ?? "auto";
}
