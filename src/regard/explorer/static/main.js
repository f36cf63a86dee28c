// The page as a whole: what it knows, who answers, and the view that is open.

import { Asking } from "./asking.js";
import { element, refill } from "./element.js";
import { fromHash, toHash } from "./hash.js";
import { run } from "./running.js";
import { shell } from "./shell.js";
import { createStore, INITIAL } from "./store.js";
import { fitting, shownOf } from "./subject.js";
import { keepTheme } from "./theme.js";
import { Tiles } from "./tiles.js";
import { VIEWS } from "./views.js";

const NOTHING = "Nothing has been read yet. Type a sentence above.";

/**
 * Begins the explorer inside an element; gives back what ends it.
 * @param {HTMLElement} root
 * @param {{kind: string, ask: Function}} source
 */
export function start(root, source) {
  const linked = source.kind === "widget" ? { state: {} } : fromHash(location.hash);
  const store = createStore({ ...INITIAL, ...linked.state });
  root.classList.add("regard");
  const context = contextOf(root, source, store);
  const page = shell(context);
  refill(root, page.node);
  const ends = [keepTheme(root, store), followViews(context, page.main)];
  if (source.kind !== "widget") ends.push(followHash(context));
  const { state, text, model } = linked;
  opened(context, { linked: () => state, text, model }).catch((error) => context.fail(error));
  source.watch?.(context.connection, () => reopened(context));
  return () => ends.forEach((end) => end());
}

/** What every view gets. */
function contextOf(root, source, store) {
  const asking = new Asking(source, (isAction) => context.answered(isAction));
  const context = {
    root,
    source,
    store,
    asking,
    tiles: new Tiles(asking),
    ask: (name, params, signal) => asking.ask(name, params, signal),
    once: (name, params) => asking.once(store.get().epoch, name, params),
    headsOf: (shown, epoch) => asking.once(epoch, "heads", { shown }).then((answer) => answer.values),
    say: () => {},
    fail: () => {},
    answered: () => {},
    connection: () => {},
    status: () => {},
    history: new Map(), // texts that this page showed, by number: the server may have dropped them
    runs: 0, // how often it did
    looked: new Set(), // cells whose arithmetic was looked at, for the file
    maps: [], // those in view, for pictures
  };
  context.refresh = async (patch = {}) => {
    const { values } = await asking.ask("state", {});
    context.show(values, patch);
  };
  context.show = (world, patch = {}) => {
    source.adopt?.(world.session);
    const state = { ...store.get(), world, ...patch };
    remember(context.history, shownOf(state));
    store.set({ world, epoch: state.epoch + 1, ...patch, ...fitting(state) });
  };
  return context;
}

const REMEMBERED = 64; // texts of the history

function remember(history, shown) {
  if (!shown?.text) return;
  history.delete(shown.id);
  history.set(shown.id, { text: shown.text, model: shown.model });
  if (history.size > REMEMBERED) history.delete(history.keys().next().value);
}

/** Asks what there is. A link whose text is not here runs it again. `linked` is the state of the link, made when used. */
async function opened(context, { linked, text, model }) {
  const { values: world } = await context.asking.ask("state", {});
  const wanted = linked().shown ?? context.store.get().shown;
  const found = meant(world, wanted, text, model);
  if (found) return context.show(world, { ...linked(), shown: found.id });
  const first = world.shown.length ? { shown: world.shown[0].id } : {};
  if (!text || context.source.kind !== "server") return context.show(world, { ...linked(), ...first });
  try {
    return await run(context, text, model ?? "language", linked);
  } catch (error) {
    context.show(world, first);
    throw error;
  }
}

/** The recording of a text among those of the server: the one of this number, or any other of the same text. */
function meant(world, id, text, model) {
  const isMeant = (each) => each && (!text || (each.text === text && (!model || each.model === model)));
  const all = [world.shown.find((each) => each.id === id), ...(text ? world.shown : [])];
  return all.find(isMeant) ?? null;
}

/** After the server was started again: the same text, with the choices made by the time it is shown. */
function reopened(context) {
  const { text, model } = shownOf(context.store.get()) ?? {};
  const linked = () => {
    const { world, epoch, shown, other, hover, ...chosen } = context.store.get();
    return { ...chosen, shown: 0, other: null };
  };
  context.history.clear(); // its numbers mean other texts now
  opened(context, { linked, text, model }).catch((error) => context.fail(error));
}

/** Opens the view of the state, and closes the one before. */
function followViews(context, main) {
  let close = () => {};
  let open = null;
  const show = () => {
    const state = context.store.get();
    const found = VIEWS.find((each) => each.name === state.view) ?? VIEWS[0];
    const ready = found.needsText === false || shownOf(state);
    const name = ready ? found.name : `waiting ${Boolean(state.world)}`;
    if (open === name) return;
    close();
    open = name;
    const ends = [];
    const inner = {
      ...context,
      listen: (listener) => ends.push(context.store.listen(listener)),
      end: (last) => ends.push(last),
    };
    refill(main, ready ? found.make(inner) : element("p", { class: "empty" }, state.world ? NOTHING : "One moment …"));
    main.scrollTop = 0;
    close = () => ends.forEach((end) => end());
  };
  const end = context.store.listen((_, changed) => {
    if (changed.has("view") || changed.has("world")) show();
  });
  show();
  return () => {
    end();
    close();
  };
}

const RESTORED = ["view", "shown", "layer", "head", "query", "key", "locked", "side", "heads", "place", "step", "other"];

/** Keeps the address and the state the same. Another view and another text are steps that Back takes back. */
function followHash(context) {
  const { store } = context;
  let written = location.hash;
  let timer = 0;
  let settles = true; // whether the next address stands for the same step as this one
  let pending = 0;
  const write = () => {
    const state = store.get();
    if (!state.world) return;
    const now = `#${toHash(state, INITIAL)}`;
    const isMove = !settles && placeOf(now) !== placeOf(location.hash);
    settles = pending > 0;
    if (now === location.hash) return;
    history[isMove ? "pushState" : "replaceState"](null, "", now);
    written = now;
  };
  const read = () => {
    if (location.hash === written) return;
    written = location.hash;
    const linked = fromHash(location.hash);
    const before = Object.fromEntries(RESTORED.map((name) => [name, INITIAL[name]]));
    settles = true;
    pending += 1;
    restored(context, { ...linked, state: { ...before, ...linked.state } })
      .catch((error) => context.fail(error))
      .finally(() => {
        pending -= 1;
      });
  };
  const end = store.listen(() => {
    clearTimeout(timer);
    timer = setTimeout(write, 120);
  });
  window.addEventListener("hashchange", read);
  window.addEventListener("popstate", read);
  return () => {
    end();
    clearTimeout(timer);
    window.removeEventListener("hashchange", read);
    window.removeEventListener("popstate", read);
  };
}

/** The view and the text that an address is about. */
function placeOf(hash) {
  const { state, text, model } = fromHash(hash);
  return `${state.view ?? INITIAL.view} ${text === null ? (state.shown ?? INITIAL.shown) : `${model} ${text}`}`;
}

/** Shows the view and the text of an address; a text that the server has dropped is read again. */
async function restored(context, { state: linked, text, model }) {
  const { store, history: past, source } = context;
  const known = text === null ? past.get(linked.shown) : { text, model };
  const isMeant = (world) => meant(world, linked.shown, known?.text, known?.model);
  const now = store.get();
  if (now.world && isMeant(now.world)?.id === now.shown) {
    store.set({ ...linked, shown: now.shown, ...fitting({ ...now, ...linked, shown: now.shown }) });
    return;
  }
  const { values: world } = await context.ask("state", {});
  const found = isMeant(world);
  if (!found && known && source.kind === "server") await run(context, known.text, known.model ?? "language", () => linked);
  else context.show(world, { ...linked, shown: found?.id ?? now.shown });
}
