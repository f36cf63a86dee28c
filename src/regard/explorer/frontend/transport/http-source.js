// The data source of the web page: HTTP requests to the server.

import { Reconnection } from "./reconnect.js";
import { unpack } from "./unpack.js";

/** @import { ConnectionStatus, EndpointName, Params, Request, Source } from "../lib/types.js" */

const MAX_ATTEMPTS = 4; // per request
const STALE_ADDRESS_MESSAGE =
  "The explorer was restarted, so the address of this page is out of date. Open the address printed by regard explore.";

/** @type {Set<EndpointName>} */
const REOPENING_ENDPOINTS = new Set(["state", "run_model", "progress"]); // these requests have no session id

/**
 * HTTP requests to the server at an address. If the server is lost, reconnects and sends the request again.
 *
 * `watch` sets two listeners: of the connection's status, and of a restart of the server. After a restart, session ids
 * belong to other sessions. Requests with a session id are then aborted until the page shows sessions of the new server
 * and calls `adopt` with its id.
 * @param {string} base
 * @returns {Source}
 */
export function httpSource(base) {
  let onRestart = () => {};
  /** @type {(status: ConnectionStatus) => void} */
  let onStatus = () => {};
  /** @type {string | null} */
  let serverId = null; // of the server whose sessions the page shows
  let isStale = false; // whether the page still shows sessions of the server before the restart
  let numRestarts = 0;
  const connection = new Reconnection(base, (status) => onStatus(status));
  /**
   * @param {EndpointName} name
   * @param {Params} params
   * @param {AbortSignal} [signal]
   */
  const send = async (name, params, signal) => {
    const response = await fetch(new URL(`api/${name}`, base), {
      method: "POST",
      headers: { "content-type": "application/json", ...(serverId ? { "x-server-id": serverId } : {}) },
      body: JSON.stringify(params),
      signal: signal ?? null,
    });
    return { status: response.status, body: await response.arrayBuffer() };
  };
  /** @type {Request} */
  const request = async (name, params, signal) => {
    if (isStale && !REOPENING_ENDPOINTS.has(name)) throw restartedError();
    const { status, body } = await sendWithRetry(name, params, signal);
    if (status === 409) {
      if (!isStale) {
        serverId = null;
        isStale = true;
        numRestarts += 1;
        onRestart();
      }
      throw restartedError();
    }
    if (status < 200 || status > 299) throw new Error(errorMessage(status, body));
    return unpack(body);
  };
  /**
   * The response; waits while the server is lost, then sends the request again.
   * @param {EndpointName} name
   * @param {Params} params
   * @param {AbortSignal} [signal]
   */
  const sendWithRetry = async (name, params, signal) => {
    const restartsBefore = numRestarts;
    for (let attempt = 0; attempt < MAX_ATTEMPTS; attempt += 1) {
      if (connection.isLost) await connection.waitForServer(); // resolves after the server proved that it has the key
      signal?.throwIfAborted();
      if (numRestarts !== restartsBefore) throw restartedError();
      try {
        return await send(name, params, signal);
      } catch (error) {
        if (!(error instanceof TypeError)) throw error; // fetch throws a TypeError if no server responds
        await connection.waitForServer();
      }
    }
    throw new Error(`The server closed the connection ${MAX_ATTEMPTS} times during ${name}. See its terminal output.`);
  };
  return {
    kind: "server",
    request,
    watch: (statusListener, restartListener) => {
      onStatus = statusListener;
      onRestart = restartListener;
    },
    adopt: (current) => {
      serverId = current ?? null;
      isStale = false;
    },
  };
}

function restartedError() {
  return new DOMException("The server was restarted.", "AbortError");
}

/**
 * The message of a response with an error status.
 * @param {number} status
 * @param {ArrayBuffer} body
 * @returns {string}
 */
export function errorMessage(status, body) {
  if (status === 404) return STALE_ADDRESS_MESSAGE;
  try {
    return JSON.parse(new TextDecoder().decode(body)).error;
  } catch {
    return `The server responded with status ${status}.`;
  }
}
