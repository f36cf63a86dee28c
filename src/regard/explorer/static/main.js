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
  if (source.kind !== "widget") ends.push(followHash(store));
  opened(context, linked).catch((error) => context.fail(error));
  return () => ends.forEach((end) => end());
}

/** What every view gets. */
function contextOf(root, source, store) {
  const asking = new Asking(source);
  const context = {
    root,
    source,
    store,
    asking,
    tiles: new Tiles(source),
    ask: (name, params, signal) => asking.ask(name, params, signal),
    once: (name, params) => asking.once(store.get().epoch, name, params),
    headsOf: (shown, epoch) => asking.once(epoch, "heads", { shown }).then((answer) => answer.values),
    say: () => {},
    fail: () => {},
    status: () => {},
    made: new Set(), // numbers of what this page let models read
    runs: 0, // how often it did
    looked: new Set(), // cells whose arithmetic was looked at, for the file
    maps: [], // those in view, for pictures
  };
  context.refresh = async (patch = {}) => {
    const { values } = await asking.ask("state", {});
    const state = { ...store.get(), world: values, ...patch };
    store.set({ world: values, epoch: state.epoch + 1, ...patch, ...fitting(state) });
  };
  return context;
}

async function shownInstead(context, id) {
  if (context.store.get().shown !== id) await context.refresh({ shown: id });
}

/** Asks what there is. A link whose text is not here runs it again. */
async function opened(context, { state: linked, text, model }) {
  await context.refresh();
  const state = context.store.get();
  const all = state.world.shown;
  const isMeant = (each) => each && (!text || (each.text === text && (!model || each.model === model)));
  const found = [shownOf(state), ...all].find(isMeant);
  if (found) await shownInstead(context, found.id);
  else if (text && context.source.kind === "server") {
    await run(context, text, model ?? "language");
    const now = context.store.get();
    context.store.set({ ...linked, ...fitting({ ...now, ...linked, shown: now.shown }), shown: now.shown });
  } else if (all.length) await shownInstead(context, all[0].id);
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

/** Keeps the address and the state the same. */
function followHash(store) {
  let written = location.hash;
  let timer = 0;
  const write = () => {
    const state = store.get();
    if (!state.world) return;
    const now = `#${toHash(state, INITIAL)}`;
    if (now === location.hash) return;
    const isMove = fromHash(now).state.view !== fromHash(location.hash).state.view;
    history[isMove ? "pushState" : "replaceState"](null, "", now);
    written = now;
  };
  const read = () => {
    if (location.hash === written) return;
    written = location.hash;
    const { state } = fromHash(location.hash);
    const now = { ...store.get(), ...state };
    store.set({ view: INITIAL.view, ...state, ...fitting(now) });
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
