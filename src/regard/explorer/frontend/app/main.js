// Starts the explorer: creates the store, connects the data source and shows the selected view.

import { element, replaceContent } from "../lib/element.js";
import { findSession, historyKey } from "../state/linked-session.js";
import { clampSelection, selectSession } from "../state/selectors.js";
import { createStore, INITIAL_STATE } from "../state/store.js";
import { applyTheme } from "../state/theme.js";
import { fromHash, toHash } from "../state/url-state.js";
import { RequestCache } from "../transport/request-cache.js";
import { TileCache } from "../transport/tile-cache.js";
import { runModel } from "./run-model.js";
import { createShell } from "./shell.js";
import { VIEWS } from "./view-list.js";

/**
 * @import { Context, LinkedState, PageContext, ServerState, Session, Source, State, Store } from "../lib/types.js"
 */

const NO_TEXT_HINT = "No text yet. Type a sentence above and press Run.";

/**
 * Starts the explorer inside an element; returns a function that stops it.
 * @param {HTMLElement} root
 * @param {Source} source
 */
export function startExplorer(root, source) {
  /** @type {LinkedState} */
  const linked = source.kind === "widget" ? { state: {} } : fromHash(location.hash);
  const store = createStore({ ...INITIAL_STATE, ...linked.state });
  root.classList.add("regard");
  const context = createContext(root, source, store);
  const page = createShell(context);
  replaceContent(root, page.node);
  const ends = [applyTheme(root, store), followViews(context, page.main)];
  if (source.kind !== "widget") ends.push(followHash(context));
  const { state, text, model } = linked;
  openLinkedState(context, { linked: () => state, text, model }).catch((error) => context.showError(error));
  source.watch?.(context.showConnectionStatus, () => reopenAfterRestart(context));
  return () => {
    for (const end of ends) end();
  };
}

/**
 * The context that all parts of the page share. The shell sets the callbacks that show something.
 * @param {HTMLElement} root
 * @param {Source} source
 * @param {Store<State>} store
 */
function createContext(root, source, store) {
  const requestCache = new RequestCache(source, (isAction) => context.onResponse(isAction));
  /** @type {PageContext} */
  const context = {
    root,
    source,
    store,
    requestCache,
    tiles: new TileCache(requestCache),
    request: (name, params, signal) => requestCache.request(name, params, signal),
    requestCached: (name, params) => requestCache.requestCached(store.get().stateVersion, name, params),
    headTable: (session, stateVersion) =>
      requestCache.requestCached(stateVersion, "heads", { session }).then((response) => response.values),
    announce: () => {},
    showError: () => {},
    onResponse: () => {},
    showConnectionStatus: () => {},
    showProgress: () => {},
    runModel: (text, model, patch) => runModel(context, text, model, patch),
    refresh: async (patch = {}) => {
      const { values } = await requestCache.request("state", {});
      context.applyServerState(values, patch);
    },
    applyServerState: (serverState, patch = {}) => {
      source.adopt?.(serverState.server_id);
      const state = { ...store.get(), serverState, ...patch };
      addToHistory(context.history, selectSession(state));
      store.set({ serverState, stateVersion: state.stateVersion + 1, ...patch, ...clampSelection(state) });
    },
    history: new Map(),
    runCount: 0,
    openedCells: new Set(),
    visibleMaps: [],
  };
  return context;
}

const MAX_HISTORY_TEXTS = 64;

/**
 * @param {PageContext["history"]} history
 * @param {Session | undefined} session
 */
function addToHistory(history, session) {
  if (!session?.text) return;
  history.delete(session.id);
  history.set(session.id, { text: session.text, model: session.model });
  for (const oldest of history.keys()) {
    if (history.size <= MAX_HISTORY_TEXTS) break;
    history.delete(oldest);
  }
}

/**
 * Requests the server state; runs the linked text if the server has no session of it. `linked` returns the linked state.
 * @param {PageContext} context
 * @param {{ linked: () => Partial<State>, text?: string | null, model?: string | null }} link
 */
async function openLinkedState(context, { linked, text, model }) {
  const { values: serverState } = await context.requestCache.request("state", {});
  const id = linked().session ?? context.store.get().session;
  const session = findSession(serverState, id, text, model);
  if (session) return context.applyServerState(serverState, { ...linked(), session: session.id });
  const first = serverState.sessions.length ? { session: serverState.sessions[0].id } : {};
  if (!text || context.source.kind !== "server")
    return context.applyServerState(serverState, { ...linked(), ...first });
  try {
    return await context.runModel(text, model ?? "language", linked);
  } catch (error) {
    context.applyServerState(serverState, first);
    throw error;
  }
}

/**
 * Opens the same text after a restart of the server, with the current selections.
 * @param {PageContext} context
 */
function reopenAfterRestart(context) {
  const { text, model } = selectSession(context.store.get()) ?? {};
  const linked = () => {
    const { serverState, stateVersion, session, otherSession, hoveredCell, ...selections } = context.store.get();
    return { ...selections, session: 0, otherSession: null };
  };
  context.history.clear(); // the restarted server gives these ids to other sessions
  openLinkedState(context, { linked, text, model }).catch((error) => context.showError(error));
}

/**
 * Shows the view that the state selects, and closes the previous one.
 * @param {PageContext} context
 * @param {HTMLElement} main
 */
function followViews(context, main) {
  let close = () => {};
  let open = "";
  const show = () => {
    const state = context.store.get();
    const view = VIEWS.find(({ name }) => name === state.view) ?? VIEWS[0];
    const isReady = view.needsText === false || selectSession(state);
    const name = isReady ? view.name : `waiting ${Boolean(state.serverState)}`;
    if (open === name) return;
    close();
    open = name;
    /** @type {Array<() => void>} */
    const ends = [];
    /** @type {Context} */
    const inner = {
      ...context,
      subscribe: (listener) => ends.push(context.store.subscribe(listener)),
      end: (callback) => ends.push(callback),
    };
    const hint = state.serverState ? NO_TEXT_HINT : "Loading…";
    replaceContent(main, isReady ? view.create(inner) : element("p", { class: "empty-state" }, hint));
    main.scrollTop = 0;
    close = () => {
      for (const end of ends) end();
    };
  };
  const end = context.store.subscribe((_, changed) => {
    if (changed.has("view") || changed.has("serverState")) show();
  });
  show();
  return () => {
    end();
    close();
  };
}

const NO_SESSION = 0;
const URL_DELAY_MS = 120;
/** @type {Array<keyof State>} */
const RESTORED_FIELDS = [
  "view",
  "session",
  "layer",
  "head",
  "query",
  "key",
  "pinnedTokens",
  "pinnedSide",
  "lineHeads",
  "viewport",
  "generationStep",
  "otherSession",
];

/**
 * Synchronizes the URL and the state. A change of the view or of the text adds an entry to the browser history.
 * @param {PageContext} context
 */
function followHash(context) {
  const { store } = context;
  let lastHash = location.hash;
  let timer = 0;
  let replaceNext = true; // whether the next URL replaces the current history entry
  let numRestoring = 0;
  const write = () => {
    const state = store.get();
    if (!state.serverState) return;
    const hash = `#${toHash(state, INITIAL_STATE)}`;
    const isNewEntry = !replaceNext && historyKey(hash) !== historyKey(location.hash);
    replaceNext = numRestoring > 0;
    if (hash === location.hash) return;
    history[isNewEntry ? "pushState" : "replaceState"](null, "", hash);
    lastHash = hash;
  };
  const read = () => {
    if (location.hash === lastHash) return;
    lastHash = location.hash;
    const linked = fromHash(location.hash);
    const defaults = Object.fromEntries(RESTORED_FIELDS.map((name) => [name, INITIAL_STATE[name]]));
    replaceNext = true;
    numRestoring += 1;
    restoreFromHash(context, { ...linked, state: { ...defaults, ...linked.state } })
      .catch((error) => context.showError(error))
      .finally(() => {
        numRestoring -= 1;
      });
  };
  const end = store.subscribe(() => {
    clearTimeout(timer);
    timer = setTimeout(write, URL_DELAY_MS);
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

/**
 * Restores the view and the text of a URL; runs the text again if the server has dropped its session.
 * @param {PageContext} context
 * @param {LinkedState} link
 */
async function restoreFromHash(context, { state: linked, text, model }) {
  const { store, history: texts, source } = context;
  const entry = text ? { text, model } : texts.get(linked.session ?? NO_SESSION);
  /** @param {ServerState} serverState */
  const linkedSession = (serverState) => findSession(serverState, linked.session, entry?.text, entry?.model);
  const state = store.get();
  if (state.serverState && linkedSession(state.serverState)?.id === state.session) {
    const current = { ...linked, session: state.session };
    store.set({ ...current, ...clampSelection({ ...state, ...current }) });
    return;
  }
  const { values: serverState } = await context.request("state", {});
  const session = linkedSession(serverState);
  if (!session && entry && source.kind === "server")
    await context.runModel(entry.text, entry.model ?? "language", () => linked);
  else context.applyServerState(serverState, { ...linked, session: session?.id ?? state.session });
}
