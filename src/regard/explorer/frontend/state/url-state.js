// The state in the URL, after "#".

/** @import { State } from "../lib/types.js" */

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
  galleryFilter: "properties",
};
const BOOLEAN_FIELDS = { showWords: "show_words", hideSink: "hide_sink" };
const LIST_FIELDS = { pinnedTokens: "pinned", lineHeads: "heads", viewport: "viewport" };
/** @type {Record<string, string[]>} */
const CHOICES = {
  pooling: ["mean", "max"],
  scale: ["auto", "linear", "log", "rank"],
  palette: ["ink", "purple-green"],
  headOrder: ["layer", "largest", "smallest"],
  theme: ["auto", "light", "dark"],
  pinnedSide: ["query", "key"],
};
export const MAX_LINK_TEXT_CHARACTERS = 600; // the URL does not contain longer texts

/**
 * The URL of a state: its fields that differ from `initial`, and the text.
 * @param {State} state
 * @param {State} initial
 */
export function toHash(state, initial) {
  const params = new URLSearchParams();
  for (const [field, name] of entries({ ...STRING_FIELDS, ...NUMBER_FIELDS })) {
    const value = state[field];
    if (value !== null && value !== initial[field]) params.set(name, String(value));
  }
  for (const [field, name] of entries(BOOLEAN_FIELDS)) if (state[field]) params.set(name, "1");
  for (const [field, name] of entries(LIST_FIELDS)) {
    if (state[field]?.length) params.set(name, state[field].map(shortenFraction).join(","));
  }
  const session = state.serverState?.sessions.find(({ id }) => id === state.session);
  if (session?.text && session.text.length <= MAX_LINK_TEXT_CHARACTERS) {
    params.set("text", session.text);
    params.set("model", session.model);
  }
  return params.toString();
}

/**
 * The state, the text and the model of a URL; unknown names and values are ignored.
 * @param {string} hash
 */
export function fromHash(hash) {
  const params = new URLSearchParams(hash.replace(/^#/, ""));
  /** @type {Record<string, unknown>} */
  const state = {};
  for (const [field, name] of entries(STRING_FIELDS)) {
    const value = params.get(name);
    if (value !== null && (CHOICES[field] ?? [value]).includes(value)) state[field] = value;
  }
  for (const [field, name] of entries(NUMBER_FIELDS)) {
    const number = parseNumber(params.get(name));
    if (Number.isFinite(number)) state[field] = number;
  }
  for (const [field, name] of entries(BOOLEAN_FIELDS)) if (params.has(name)) state[field] = params.get(name) === "1";
  for (const [field, name] of entries(LIST_FIELDS)) {
    const numbers = (params.get(name) ?? "").split(",").map(parseNumber);
    if (numbers.every(Number.isFinite)) state[field] = numbers;
  }
  return { state: /** @type {Partial<State>} */ (state), text: params.get("text"), model: params.get("model") };
}

/**
 * A number with at most six digits, unless it is an integer: indices of tokens are exact.
 * @param {number} x
 */
function shortenFraction(x) {
  return Number.isInteger(x) ? x : Number(x.toPrecision(6));
}

/**
 * The number of a parameter; NaN if the parameter is missing or empty.
 * @param {string | null} text
 */
function parseNumber(text) {
  return text === null || text.trim() === "" ? NaN : Number(text);
}

/**
 * The entries of an object with typed names.
 * @template {string} Name
 * @template Value
 * @param {Readonly<Record<Name, Value>>} object
 */
function entries(object) {
  return /** @type {Array<[Name, Value]>} */ (Object.entries(object));
}
