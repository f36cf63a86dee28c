// The session of a URL: the text and the model identify it, because a server may use its id for another text.

import { INITIAL_STATE } from "./store.js";
import { fromHash } from "./url-state.js";

/** @import { ServerState, Session } from "../lib/types.js" */

/**
 * The server's session with this id, or another session of the same text; null if there is none.
 * @param {ServerState} serverState
 * @param {number | undefined} id
 * @param {string | null} [text]
 * @param {string | null} [model]
 */
export function findSession(serverState, id, text, model) {
  /** @param {Session} session */
  const isMatch = (session) => !text || (session.text === text && (!model || session.model === model));
  const byId = serverState.sessions.filter((session) => session.id === id);
  return [...byId, ...(text ? serverState.sessions : [])].find(isMatch) ?? null;
}

/**
 * The view and the text of a URL as one string: URLs with equal keys share an entry of the browser history.
 * @param {string} hash
 */
export function historyKey(hash) {
  const { state, text, model } = fromHash(hash);
  const session = text === null ? (state.session ?? INITIAL_STATE.session) : `${model} ${text}`;
  return `${state.view ?? INITIAL_STATE.view} ${session}`;
}
