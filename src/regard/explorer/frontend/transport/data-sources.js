// The data sources of the page: a server, a notebook's kernel, or an exported file.
//
// A data source is an object with `kind` and `request(name, params, signal) -> Promise<{values, arrays}>`.

import { offlineCost } from "../offline/offline-cost.js";
import { offlineCell } from "../offline/offline-cell.js";
import { offlineThumbnails } from "../offline/offline-thumbnails.js";
import { offlineWeights } from "../offline/offline-weights.js";
import { Reconnection } from "./reconnect.js";
import { decodeBase64, inflate, unpack } from "./unpack.js";
import { offlineSteps } from "../offline/offline-walkthrough.js";

const KERNEL_TIMEOUT_MS = 8000; // the page reports a busy kernel after this time without a response
const MAX_ATTEMPTS = 4; // per request
const STALE_ADDRESS_MESSAGE =
  "The explorer was restarted, so the address of this page is out of date. Open the address printed by regard explore.";

const REOPENING_ENDPOINTS = new Set(["state", "run_model", "progress"]); // these requests have no session id

/**
 * HTTP requests to the server at an address. If the server is lost, reconnects and sends the request again.
 *
 * `watch` sets two listeners: of the connection's status, and of a restart of the server. After a restart, session ids
 * belong to other sessions. Requests with a session id are then aborted until the page shows sessions of the new server
 * and calls `adopt` with its id.
 */
export function httpSource(base) {
  let onRestart = () => {};
  let onStatus = () => {};
  let serverId = null; // of the server whose sessions the page shows
  let isStale = false; // whether the page still shows sessions of the server before the restart
  const connection = new Reconnection(base, (status) => onStatus(status));
  const send = async (name, params, signal) => {
    const response = await fetch(new URL(`api/${name}`, base), {
      method: "POST",
      headers: { "content-type": "application/json", ...(serverId ? { "x-server-id": serverId } : {}) },
      body: JSON.stringify(params),
      signal,
    });
    return { response, body: await response.arrayBuffer() };
  };
  let numRestarts = 0;
  const request = async (name, params, signal) => {
    if (isStale && !REOPENING_ENDPOINTS.has(name)) throw restartedError();
    const { response, body } = await sendWithRetry(name, params, signal);
    if (response.status === 409) {
      if (!isStale) {
        serverId = null;
        isStale = true;
        numRestarts += 1;
        onRestart();
      }
      throw restartedError();
    }
    if (!response.ok) throw new Error(errorMessage(response, body));
    return unpack(body);
  };
  const adopt = (current) => {
    serverId = current ?? null;
    isStale = false;
  };
  /** The response; waits while the server is lost, then sends the request again. */
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
  const watch = (statusListener, restartListener) => {
    onStatus = statusListener;
    onRestart = restartListener;
  };
  return { kind: "server", request, watch, adopt };
}

function restartedError() {
  return new DOMException("The server was restarted.", "AbortError");
}

function errorMessage(response, body) {
  if (response.status === 404) return STALE_ADDRESS_MESSAGE;
  try {
    return JSON.parse(new TextDecoder().decode(body)).error;
  } catch {
    return `The server responded with status ${response.status}.`;
  }
}

/**
 * Requests as messages of an anywidget model. A response has the id of its request. Two views of one widget receive
 * each other's responses, so ids begin with a random prefix.
 * @param {(isLate: boolean) => void} onLate called when the kernel is late, and when it responds again
 */
export function widgetSource(model, onLate = () => {}) {
  const pendingById = new Map();
  const prefix = Math.random().toString(36).slice(2);
  let lastId = 0;
  const settle = (id) => {
    const pending = pendingById.get(id);
    if (!pending) return null;
    pendingById.delete(id);
    clearTimeout(pending.timer);
    onLate(false);
    return pending;
  };
  const onMessage = (message, buffers) => {
    const pending = settle(message.id);
    if (message.error) pending?.reject(new Error(message.error));
    else pending?.resolve(unpack(copyToAlignedBuffer(buffers[0])));
  };
  model.on("msg:custom", onMessage);
  const request = (name, params) =>
    new Promise((resolve, reject) => {
      lastId += 1;
      const id = `${prefix} ${lastId}`;
      pendingById.set(id, { resolve, reject, timer: setTimeout(() => onLate(true), KERNEL_TIMEOUT_MS) });
      model.send({ id, name, params });
    });
  const end = () => {
    model.off("msg:custom", onMessage);
    for (const { timer } of pendingById.values()) clearTimeout(timer);
    pendingById.clear();
  };
  return { kind: "widget", request, end };
}

function copyToAlignedBuffer(view) {
  const bytes = new Uint8Array(view.buffer ?? view, view.byteOffset ?? 0, view.byteLength);
  return bytes.slice().buffer; // typed arrays need offsets that are multiples of 8
}

const OFFLINE_ENDPOINTS = [offlineWeights, offlineThumbnails, offlineCell, offlineCost, offlineSteps]; // tried in order
const MAX_UNPACKED_RESPONSES = 128; // in memory

/** The error for a response that an exported file does not contain. */
class NotInFile extends Error {
  name = "NotInFile";
}

/**
 * The responses in an exported file, and the responses that the page can compute from them.
 * @param {Object<string, string>} responses by `requestKey`: packed, compressed, in base64
 */
export function fileSource(responses) {
  const unpacked = new Map();
  const storedResponse = async (name, params) => {
    const key = requestKey(name, params);
    if (!(key in responses)) return null;
    if (!unpacked.has(key)) {
      unpacked.set(key, inflate(decodeBase64(responses[key])).then(unpack));
      if (unpacked.size > MAX_UNPACKED_RESPONSES) unpacked.delete(unpacked.keys().next().value);
    }
    return unpacked.get(key);
  };
  const request = async (name, params) => {
    const stored = await storedResponse(name, params);
    if (stored) return stored;
    for (const compute of OFFLINE_ENDPOINTS) {
      const computed = await compute(storedResponse, name, params);
      if (computed) return computed;
    }
    throw new NotInFile("This file does not contain this data. Open the text with regard explore.");
  };
  return { kind: "file", request };
}

/** The key of a request, as html_export.py writes it: sorted names, no spaces, no nulls. */
function requestKey(name, params) {
  return name + canonicalJson({ ...params, progress_id: null });
}

function canonicalJson(value) {
  if (Array.isArray(value)) return `[${value.map(canonicalJson).join(",")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const names = Object.keys(value)
    .filter((name) => value[name] !== null && value[name] !== undefined)
    .sort();
  return `{${names.map((name) => `${JSON.stringify(name)}:${canonicalJson(value[name])}`).join(",")}}`;
}
