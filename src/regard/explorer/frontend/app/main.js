// Starts the explorer: creates the store, connects the data source and shows the selected view.

import { RequestCache } from "../transport/request-cache.js";
import { element, replaceContent } from "../lib/element.js";
import { fromHash, toHash } from "../state/url-state.js";
import { runModel } from "./run-model.js";
import { createShell } from "./shell.js";
import { createStore, INITIAL_STATE } from "../state/store.js";
import { clampSelection, selectSession } from "../state/selectors.js";
import { applyTheme } from "../state/theme.js";
import { TileCache } from "../transport/tile-cache.js";
import { VIEWS } from "./view-list.js";

const NO_TEXT_HINT = "No text yet. Type a sentence above and press Run.";

/**
 * Starts the explorer inside an element; returns a function that stops it.
 * @param {HTMLElement} root
 * @param {{kind: string, request: Function}} source
 */
export function startExplorer(root, source) {
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
  return () => ends.forEach((end) => end());
}

/** The context that all views share: source, store, caches and callbacks. */
function createContext(root, source, store) {
  const requestCache = new RequestCache(source, (isAction) => context.onResponse(isAction));
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
    history: new Map(), // texts by session id, for sessions that the server may have dropped
    runCount: 0, // number of model runs so far
    openedCells: new Set(), // cells opened in Arithmetic, which an exported file contains
    visibleMaps: [], // maps that can be exported
  };
  context.refresh = async (patch = {}) => {
    const { values } = await requestCache.request("state", {});
    context.applyServerState(values, patch);
  };
  context.applyServerState = (serverState, patch = {}) => {
    source.adopt?.(serverState.server_id);
    const state = { ...store.get(), serverState, ...patch };
    addToHistory(context.history, selectSession(state));
    store.set({ serverState, stateVersion: state.stateVersion + 1, ...patch, ...clampSelection(state) });
  };
  return context;
}

const MAX_HISTORY_TEXTS = 64;

function addToHistory(history, session) {
  if (!session?.text) return;
  history.delete(session.id);
  history.set(session.id, { text: session.text, model: session.model });
  if (history.size > MAX_HISTORY_TEXTS) history.delete(history.keys().next().value);
}

/** Requests the server state; runs the linked text if the server has no session of it. `linked` returns the linked state. */
async function openLinkedState(context, { linked, text, model }) {
  const { values: serverState } = await context.requestCache.request("state", {});
  const id = linked().session ?? context.store.get().session;
  const session = findSession(serverState, id, text, model);
  if (session) return context.applyServerState(serverState, { ...linked(), session: session.id });
  const first = serverState.sessions.length ? { session: serverState.sessions[0].id } : {};
  if (!text || context.source.kind !== "server")
    return context.applyServerState(serverState, { ...linked(), ...first });
  try {
    return await runModel(context, text, model ?? "language", linked);
  } catch (error) {
    context.applyServerState(serverState, first);
    throw error;
  }
}

/** The server's session with this id, or another session of the same text; null if there is none. */
function findSession(serverState, id, text, model) {
  const isMatch = (session) => session && (!text || (session.text === text && (!model || session.model === model)));
  const byId = serverState.sessions.find((session) => session.id === id);
  return [byId, ...(text ? serverState.sessions : [])].find(isMatch) ?? null;
}

/** Opens the same text after a restart of the server, with the current selections. */
function reopenAfterRestart(context) {
  const { text, model } = selectSession(context.store.get()) ?? {};
  const linked = () => {
    const { serverState, stateVersion, session, otherSession, hoveredCell, ...selections } = context.store.get();
    return { ...selections, session: 0, otherSession: null };
  };
  context.history.clear(); // the restarted server gives these ids to other sessions
  openLinkedState(context, { linked, text, model }).catch((error) => context.showError(error));
}

/** Shows the view that the state selects, and closes the previous one. */
function followViews(context, main) {
  let close = () => {};
  let open = null;
  const show = () => {
    const state = context.store.get();
    const view = VIEWS.find(({ name }) => name === state.view) ?? VIEWS[0];
    const isReady = view.needsText === false || selectSession(state);
    const name = isReady ? view.name : `waiting ${Boolean(state.serverState)}`;
    if (open === name) return;
    close();
    open = name;
    const ends = [];
    const inner = {
      ...context,
      subscribe: (listener) => ends.push(context.store.subscribe(listener)),
      end: (callback) => ends.push(callback),
    };
    const hint = state.serverState ? NO_TEXT_HINT : "Loading…";
    replaceContent(main, isReady ? view.create(inner) : element("p", { class: "empty-state" }, hint));
    main.scrollTop = 0;
    close = () => ends.forEach((end) => end());
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

const URL_DELAY_MS = 120;
const RESTORED_FIELDS = [
  ...["view", "session", "layer", "head", "query", "key", "pinnedTokens", "pinnedSide"],
  ...["lineHeads", "viewport", "generationStep", "otherSession"],
];

/** Synchronizes the URL and the state. A change of the view or of the text adds an entry to the browser history. */
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

/** The view and the text of a URL as one string: URLs with equal keys share a history entry. */
function historyKey(hash) {
  const { state, text, model } = fromHash(hash);
  const session = text === null ? (state.session ?? INITIAL_STATE.session) : `${model} ${text}`;
  return `${state.view ?? INITIAL_STATE.view} ${session}`;
}

/** Restores the view and the text of a URL; runs the text again if the server has dropped its session. */
async function restoreFromHash(context, { state: linked, text, model }) {
  const { store, history: texts, source } = context;
  const entry = text === null ? texts.get(linked.session) : { text, model };
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
    await runModel(context, entry.text, entry.model ?? "language", () => linked);
  else context.applyServerState(serverState, { ...linked, session: session?.id ?? state.session });
}
