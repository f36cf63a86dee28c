// The state in the URL, after "#".

/** The fields of the state that the URL contains, by type, with their names in the URL. */
const NUMBER_FIELDS = {
  session: "session",
  layer: "layer",
  head: "head",
  query: "query",
  key: "key",
  lineMass: "mass",
  lineStart: "line_start",
  generationStep: "generation_step",
  otherSession: "other_session",
};
const STRING_FIELDS = {
  view: "view",
  pooling: "pooling",
  scale: "scale",
  palette: "palette",
  measure: "measure",
  headOrder: "order",
  kindFilter: "kind",
  theme: "theme",
  pinnedSide: "pinned_side",
  experiment: "experiment",
};
const BOOLEAN_FIELDS = { showWords: "show_words", hideSink: "hide_sink" };
const LIST_FIELDS = { pinnedTokens: "pinned", lineHeads: "heads", viewport: "viewport" };
const CHOICES = {
  pooling: ["mean", "max"],
  scale: ["auto", "linear", "log", "rank"],
  palette: ["ink", "purple-green"],
  headOrder: ["layer", "largest", "smallest"],
  theme: ["auto", "light", "dark"],
  pinnedSide: ["query", "key"],
};
export const MAX_LINK_TEXT_CHARACTERS = 600; // the URL does not contain longer texts

/** The URL of a state: its fields that differ from `initial`, and the text. */
export function toHash(state, initial) {
  const params = new URLSearchParams();
  for (const [field, name] of Object.entries({ ...STRING_FIELDS, ...NUMBER_FIELDS })) {
    if (state[field] !== null && state[field] !== initial[field]) params.set(name, state[field]);
  }
  for (const [field, name] of Object.entries(BOOLEAN_FIELDS)) if (state[field]) params.set(name, "1");
  for (const [field, name] of Object.entries(LIST_FIELDS)) {
    if (state[field]?.length) params.set(name, state[field].map((x) => Number(x.toPrecision(6))).join(","));
  }
  const session = state.serverState?.sessions.find(({ id }) => id === state.session);
  if (session?.text && session.text.length <= MAX_LINK_TEXT_CHARACTERS) {
    params.set("text", session.text);
    params.set("model", session.model);
  }
  return params.toString();
}

/** The state, the text and the model of a URL; unknown names and values are ignored. */
export function fromHash(hash) {
  const params = new URLSearchParams(hash.replace(/^#/, ""));
  const state = {};
  for (const [field, name] of Object.entries(STRING_FIELDS)) {
    const value = params.get(name);
    if (value !== null && (CHOICES[field] ?? [value]).includes(value)) state[field] = value;
  }
  for (const [field, name] of Object.entries(NUMBER_FIELDS)) {
    if (params.has(name) && Number.isFinite(Number(params.get(name)))) state[field] = Number(params.get(name));
  }
  for (const [field, name] of Object.entries(BOOLEAN_FIELDS))
    if (params.has(name)) state[field] = params.get(name) === "1";
  for (const [field, name] of Object.entries(LIST_FIELDS)) {
    const numbers = (params.get(name) ?? "")
      .split(",")
      .filter((x) => x !== "")
      .map(Number);
    if (numbers.length && numbers.every(Number.isFinite)) state[field] = numbers;
  }
  return { state, text: params.get("text"), model: params.get("model") };
}
