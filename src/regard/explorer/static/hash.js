// The state that a link carries, as the part of an address after "#".

const NUMBERS = ["shown", "layer", "head", "query", "key", "mass", "from", "step", "other"];
const NAMES = ["view", "pool", "scale", "palette", "measure", "order", "kind", "theme", "side", "experiment"];
const CHOICES = {
  pool: ["mean", "max"],
  scale: ["auto", "linear", "log", "rank"],
  palette: ["ink", "meadow"],
  order: ["place", "largest", "smallest"],
  theme: ["auto", "light", "dark"],
  side: ["query", "key"],
};
const SWITCHES = ["words", "hide"];
const LISTS = ["locked", "heads", "place"];
const LONGEST = 600; // letters of text that a link carries, so that it can be run again elsewhere

/** The fields that differ from the initial ones. */
export function toHash(state, initial) {
  const found = new URLSearchParams();
  for (const name of [...NAMES, ...NUMBERS]) {
    if (state[name] !== null && state[name] !== initial[name]) found.set(name, state[name]);
  }
  for (const name of SWITCHES) if (state[name]) found.set(name, "1");
  for (const name of LISTS) {
    if (state[name]?.length) found.set(name, state[name].map((x) => Number(x.toPrecision(6))).join(","));
  }
  const shown = state.world?.shown.find((each) => each.id === state.shown);
  if (shown?.text && shown.text.length <= LONGEST) {
    found.set("text", shown.text);
    found.set("model", shown.model);
  }
  return found.toString();
}

/** The same fields, read; what is not understood is left out. */
export function fromHash(hash) {
  const found = new URLSearchParams(hash.replace(/^#/, ""));
  const state = {};
  for (const name of NAMES) {
    const value = found.get(name);
    if (value !== null && (CHOICES[name] ?? [value]).includes(value)) state[name] = value;
  }
  for (const name of NUMBERS) {
    if (found.has(name) && Number.isFinite(Number(found.get(name)))) state[name] = Number(found.get(name));
  }
  for (const name of SWITCHES) if (found.has(name)) state[name] = found.get(name) === "1";
  for (const name of LISTS) {
    const numbers = (found.get(name) ?? "")
      .split(",")
      .filter((x) => x !== "")
      .map(Number);
    if (numbers.length && numbers.every(Number.isFinite)) state[name] = numbers;
  }
  return { state, text: found.get("text"), model: found.get("model") };
}
