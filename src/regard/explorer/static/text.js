// The text itself: where a token looks, and who looks at it.

import { choice, element, refill } from "./element.js";
import { headBar } from "./headbar.js";
import { drawLooks } from "./looks.js";
import { rootShare } from "./scale.js";
import { layerOf, shownOf, tokensOf } from "./subject.js";
import { TextFlow } from "./textflow.js";

const FAINTEST = 0.003; // weights below are not shaded
const PATIENCE = 40; // milliseconds that the cursor must rest

export function textView(context) {
  const { store } = context;
  const parts = {
    panes: element("div", { class: "panes" }),
    side: element("aside", { class: "side" }),
    flows: {},
    hovered: null,
    found: null,
    asked: "",
  };
  const words = choice(
    "Units",
    [
      ["tokens", "Tokens"],
      ["words", "Words"],
    ],
    store.get().words ? "words" : "tokens",
    (name) => store.set({ words: name === "words" }),
  );
  context.listen((_, changed) => {
    const has = (...names) => names.some((name) => changed.has(name));
    if (has("world", "shown", "layer", "words")) build(context, parts);
    else if (has("head", "locked", "side")) update(context, parts);
  });
  context.end(() => {
    clearTimeout(parts.timer);
    Object.values(parts.flows).forEach((flow) => flow.leave());
  });
  build(context, parts);
  return element(
    "section",
    { class: "view text-view", "aria-label": "Text" },
    headBar(context, words),
    element("div", { class: "split" }, parts.panes, parts.side),
  );
}

/** One text, or two where queries and keys have different ones. */
function build(context, parts) {
  const state = context.store.get();
  const tokens = tokensOf(shownOf(state), layerOf(state));
  const { texts } = shownOf(state);
  const layer = layerOf(state);
  Object.values(parts.flows).forEach((flow) => flow.leave());
  const made = (side, title, list, words, bytes) => {
    const flow = new TextFlow({
      label: `${title}. Left and right move, Enter locks a token, Shift and Enter add one, Escape lets go.`,
      point: (item) => point(context, parts, side, item),
      pick: (item, add) => pick(context, side, range(item), add),
      span: (item) => context.store.set({ locked: range(item), side }),
      clear: () => context.store.set({ locked: [] }),
    });
    flow.show(list, { words: state.words ? words : null, parts: bytes });
    parts.flows[side] = flow;
    return element("div", { class: "pane" }, tokens.crosses ? element("h3", {}, title) : null, flow.node);
  };
  parts.flows = {};
  const panes = tokens.crosses
    ? [
        made("query", `${texts[layer.query_text].name}: looks`, tokens.rows, tokens.rowWords, tokens.rowParts),
        made("key", `${texts[layer.key_text].name}: is looked at`, tokens.columns, tokens.columnWords, tokens.columnParts),
      ]
    : [made("query", "The text", tokens.columns, tokens.columnWords, tokens.columnParts)];
  refill(parts.panes, panes);
  parts.hovered = null;
  parts.asked = "";
  update(context, parts);
}

function range(item) {
  return Array.from({ length: item.last - item.first + 1 }, (_, n) => item.first + n);
}

function point(context, parts, side, item) {
  parts.hovered = item ? { side, tokens: range(item) } : null;
  clearTimeout(parts.timer);
  parts.timer = setTimeout(() => update(context, parts), PATIENCE);
}

/** A click locks, the same again lets go; with Shift it adds or takes away. */
function pick({ store }, side, tokens, add) {
  const { locked, side: before } = store.get();
  const has = side === before && tokens.every((token) => locked.includes(token));
  if (add && side === before) {
    const rest = locked.filter((token) => !tokens.includes(token));
    store.set({ locked: has ? rest : [...rest, ...tokens].sort((a, b) => a - b), side });
  } else store.set({ locked: has && locked.length === tokens.length ? [] : tokens, side });
}

/** What is meant: the tokens under the cursor, else those that are locked. */
function meant(state, parts) {
  return parts.hovered ?? (state.locked.length ? { side: state.side, tokens: state.locked } : null);
}

async function update(context, parts) {
  const state = context.store.get();
  const what = meant(state, parts);
  const layer = layerOf(state);
  const asked = what ? `${state.epoch} ${state.shown} ${layer.number} ${state.head} ${what.side} ${what.tokens}` : "";
  if (asked && asked !== parts.asked) {
    parts.asked = asked;
    try {
      const found = await lookUp(context, state, layer, what);
      if (parts.asked !== asked) return;
      parts.found = found;
    } catch (error) {
      context.fail(error);
      return;
    }
  }
  if (!asked) {
    parts.asked = "";
    parts.found = null;
  }
  colour(context, parts);
}

/** The weights of the tokens as queries, and on them as keys. */
async function lookUp({ ask }, state, layer, { side, tokens }) {
  const about = { shown: state.shown, layer: layer.number, heads: [state.head] };
  const crosses = layer.query_text !== layer.key_text;
  const queries = crosses
    ? side === "query"
      ? tokens
      : []
    : tokens.map((t) => t - layer.first).filter((q) => q >= 0 && q < layer.queries);
  const keys = crosses ? (side === "key" ? tokens : []) : tokens.filter((t) => t < layer.keys);
  const [row, column] = await Promise.all([
    queries.length ? ask("row", { ...about, queries }) : null,
    keys.length ? ask("column", { ...about, keys }) : null,
  ]);
  return { looks: row?.arrays.mean.data ?? null, seen: column?.arrays.sum.data ?? null, queries, keys };
}

function colour(context, parts) {
  const state = context.store.get();
  const layer = layerOf(state);
  const crosses = layer.query_text !== layer.key_text;
  const { found } = parts;
  const share = (values, first, last) => {
    let sum = 0;
    for (let n = first; n <= last; n += 1) sum += values?.[n] ?? 0;
    return sum > FAINTEST ? rootShare(sum) : 0;
  };
  for (const [side, flow] of Object.entries(parts.flows)) {
    const isKeys = !crosses || side === "key";
    const isQueries = !crosses || side === "query";
    const shift = crosses ? 0 : layer.first;
    flow.colour(({ first, last }) => ({
      look: isKeys ? share(found?.looks, first, last) : 0,
      seen: isQueries ? share(found?.seen, first - shift, last - shift) : 0,
      state: stateOf(state, parts, side, first),
    }));
  }
  const said = drawLooks(parts.side, { found, tokens: tokensOf(shownOf(state), layer), words: state.words, crosses });
  if (said && said !== parts.said) context.say(said);
  parts.said = said;
}

function stateOf(state, parts, side, token) {
  const isHovered = parts.hovered?.side === side && parts.hovered.tokens.includes(token);
  const isLocked = state.side === side && state.locked.includes(token);
  return isLocked ? "locked" : isHovered ? "query" : "";
}
