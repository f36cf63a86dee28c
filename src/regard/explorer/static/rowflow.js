// The text beside a map: where the query under the cursor looks, exactly, whatever the map's scale.

import { element, refill } from "./element.js";
import { number } from "./format.js";
import { topOf } from "./looks.js";
import { rootShare } from "./scale.js";
import { hiding, layerOf, shownOf, tokensOf } from "./subject.js";
import { TextFlow } from "./textflow.js";

const FAINTEST = 0.003; // weights below are not shaded
const PATIENCE = 60; // milliseconds that the cursor must rest

export function rowFlow(context) {
  const { store } = context;
  const title = element("h3", {});
  const flow = new TextFlow({
    label: "The keys, shaded by the weight of the query; left and right move, Enter takes one",
    point: (item) => {
      const { query } = store.get();
      store.set({ hover: item && query !== null ? { query, key: item.first } : null });
    },
    pick: (item) => store.set({ query: store.get().query ?? 0, key: item.first }),
    span: () => {},
    clear: () => store.set({ query: null, key: null }),
  });
  const parts = { flow, title, top: element("div"), weights: null, asked: "" };
  let timer = 0;
  const fill = () => {
    const state = store.get();
    const shown = shownOf(state);
    if (shown) {
      const { columns, columnParts } = tokensOf(shown, layerOf(state));
      flow.show(columns, { parts: columnParts });
    }
    parts.asked = "";
    update(context, parts);
  };
  context.listen((_, changed) => {
    const has = (...names) => names.some((name) => changed.has(name));
    if (has("world", "shown", "layer")) fill();
    if (has("head", "hide", "query", "hover", "key")) {
      colour(store.get(), parts);
      clearTimeout(timer);
      timer = setTimeout(() => update(context, parts), PATIENCE);
    }
  });
  context.end(() => {
    clearTimeout(timer);
    flow.leave();
  });
  fill();
  return { node: element("div", { class: "beside" }, title, flow.node, parts.top) };
}

function queryOf(state) {
  return state.hover?.query ?? state.query;
}

async function update(context, parts) {
  const state = context.store.get();
  const query = queryOf(state);
  const layer = layerOf(state);
  if (query === null || query === undefined || !layer) {
    parts.weights = null;
    parts.asked = "";
    return colour(state, parts);
  }
  const asked = `${state.epoch} ${state.shown} ${state.layer} ${state.head} ${query} ${state.hide}`;
  if (asked === parts.asked) return undefined;
  parts.asked = asked;
  try {
    const about = { shown: state.shown, layer: layer.number, head: state.head };
    const levels = (await context.once("levels", about)).values;
    const hide = hiding(state, layer, levels) ? { hide: [levels.sink.key] } : {};
    const { arrays } = await context.ask("row", {
      shown: state.shown,
      layer: layer.number,
      heads: [state.head],
      queries: [query],
      ...hide,
    });
    if (parts.asked !== asked) return undefined;
    parts.weights = { query, values: arrays.mean.data };
    const now = context.store.get();
    colour(now, parts);
    return parts.flow.reveal(now.hover?.key ?? now.key ?? 0);
  } catch (error) {
    if (error.name !== "NotInFile") return context.fail(error);
    return refill(parts.title, "This file does not hold single weights of this head.");
  }
}

function colour(state, { flow, title, top: list, weights }) {
  const query = queryOf(state);
  const known = weights && weights.query === query ? weights.values : null;
  const key = state.hover ? state.hover.key : state.key;
  const isAny = query !== null && query !== undefined;
  const layer = layerOf(state);
  const same = layer && layer.query_text === layer.key_text;
  flow.colour(({ first }) => ({
    look: known ? shade(known[first]) : 0,
    seen: 0,
    state: !isAny ? "" : same && first === layer.first + query ? "query" : first === key ? "key" : "",
  }));
  if (!isAny) {
    refill(list);
    list.dataset.of = "";
  } else if (known && list.dataset.of !== `${state.epoch} ${state.layer} ${state.head} ${query} ${state.hide}`) {
    list.dataset.of = `${state.epoch} ${state.layer} ${state.head} ${query} ${state.hide}`;
    list.dataset.query = query;
    refill(list, topOf(known, tokensOf(shownOf(state), layer).columnLabels));
  }
  if (!isAny) return refill(title, "The text");
  return refill(
    title,
    "Where ",
    element("b", { class: "of-query" }, `token ${layer.first + query}`),
    " looks",
    known && key !== null && key !== undefined ? `: ${number(known[key])} on token ${key}` : "",
  );
}

function shade(weight) {
  return weight > FAINTEST ? rootShare(weight) : 0;
}
