// Who answers the page's questions: a server, a notebook's kernel, or the file that the page is in.
//
// Each is an object with `ask(name, params, signal) -> Promise<{values, arrays}>` and the kind of source it is.

import { fromCurves } from "./heldcost.js";
import { fromVectors } from "./offline-cell.js";
import { fromThumbnails } from "./offline-thumbnails.js";
import { fromTiles } from "./offline.js";
import { Reconnection } from "./reconnect.js";
import { fromBase64, inflated, unpack } from "./unpack.js";
import { fromForms } from "./worked.js";

const PATIENCE = 8000; // milliseconds without an answer, after which a kernel is said to be busy or gone

const ATTEMPTS = 4; // of one question
const OUT_OF_DATE =
  "The explorer was started again, and this page’s address is out of date. Open the address that regard look printed.";

const REOPENING = new Set(["state", "run", "progress"]); // requests that refer to no text by its number

/**
 * Questions by HTTP to the server at an address. A server that is lost is searched for, and asked again when it is back.
 *
 * `watch` sets two listeners: of the connection's status, and of a restart. After a restart the numbers of texts are
 * about other ones, so that requests from before are abandoned, until the page shows texts of the new server and calls
 * `adopt` with its session.
 */
export function httpSource(base) {
  let restarted = () => {};
  let status = () => {};
  let session = null; // of the server whose texts the page shows
  let isStale = false; // whether the page still shows texts of the server before the restart
  const link = new Reconnection(base, (now) => status(now));
  const send = async (name, params, signal) => {
    const answer = await fetch(new URL(`ask/${name}`, base), {
      method: "POST",
      headers: { "content-type": "application/json", ...(session ? { "x-session": session } : {}) },
      body: JSON.stringify(params),
      signal,
    });
    return { answer, body: await answer.arrayBuffer() };
  };
  let starts = 0; // of the server that the page knows of
  const ask = async (name, params, signal) => {
    if (isStale && !REOPENING.has(name)) throw abandoned();
    const { answer, body } = await sent(name, params, signal);
    if (answer.status === 409) {
      if (!isStale) {
        session = null;
        isStale = true;
        starts += 1;
        restarted();
      }
      throw abandoned();
    }
    if (!answer.ok) throw new Error(reason(answer, body));
    return unpack(body);
  };
  const adopt = (current) => {
    session = current ?? null;
    isStale = false;
  };
  /** The answer, from a server that may have been lost meanwhile. */
  const sent = async (name, params, signal) => {
    const before = starts;
    for (let attempt = 0; attempt < ATTEMPTS; attempt += 1) {
      if (link.isLost) await link.back(); // nothing is sent before the server has shown that it has the key
      signal?.throwIfAborted();
      if (starts !== before) throw abandoned();
      try {
        return await send(name, params, signal);
      } catch (error) {
        if (!(error instanceof TypeError)) throw error; // fetch throws it where no server answers
        await link.back();
      }
    }
    throw new Error(`The server closes the connection whenever it is asked for ${name}. Its terminal says why.`);
  };
  const watch = (onStatus, onRestart) => {
    status = onStatus;
    restarted = onRestart;
  };
  return { kind: "server", ask, watch, adopt };
}

function abandoned() {
  return new DOMException("The server was started again.", "AbortError");
}

function reason(answer, body) {
  if (answer.status === 404) return OUT_OF_DATE;
  try {
    return JSON.parse(new TextDecoder().decode(body)).error;
  } catch {
    return `The server answered with status ${answer.status}.`;
  }
}

/**
 * Questions as messages of an anywidget model. Each answer carries the number of its question, and two views of one
 * widget hear each other's answers, so numbers begin with something of their own.
 * @param {(isLate: boolean) => void} late hears when the kernel has not answered for long, and when it does again
 */
export function widgetSource(model, late = () => {}) {
  const waiting = new Map();
  const own = Math.random().toString(36).slice(2);
  let last = 0;
  const settle = (id) => {
    const asked = waiting.get(id);
    if (!asked) return null;
    waiting.delete(id);
    clearTimeout(asked.timer);
    late(false);
    return asked;
  };
  const hear = (message, buffers) => {
    const asked = settle(message.id);
    if (message.error) asked?.reject(new Error(message.error));
    else asked?.resolve(unpack(copied(buffers[0])));
  };
  model.on("msg:custom", hear);
  const ask = (name, params) =>
    new Promise((resolve, reject) => {
      last += 1;
      const id = `${own} ${last}`;
      waiting.set(id, { resolve, reject, timer: setTimeout(() => late(true), PATIENCE) });
      model.send({ id, name, params });
    });
  const end = () => {
    model.off("msg:custom", hear);
    for (const { timer } of waiting.values()) clearTimeout(timer);
    waiting.clear();
  };
  return { kind: "widget", ask, end };
}

function copied(view) {
  const bytes = new Uint8Array(view.buffer ?? view, view.byteOffset ?? 0, view.byteLength);
  return bytes.slice().buffer; // a view may begin anywhere; arrays need multiples of 8
}

const MADE_HERE = [fromTiles, fromThumbnails, fromVectors, fromCurves, fromForms]; // from answers in the file
const UNPACKED = 128; // answers that stay unpacked

/** What a file has no answer for. */
class NotInFile extends Error {
  name = "NotInFile";
}

/**
 * Answers that came with the file, and what can be made of them.
 * @param {Object<string, string>} answers packed answers, compressed, in base64, by `question`
 */
export function fileSource(answers) {
  const known = new Map();
  const held = async (name, params) => {
    const key = question(name, params);
    if (!(key in answers)) return null;
    if (!known.has(key)) {
      known.set(key, inflated(fromBase64(answers[key])).then(unpack));
      if (known.size > UNPACKED) known.delete(known.keys().next().value);
    }
    return known.get(key);
  };
  const ask = async (name, params) => {
    const found = await held(name, params);
    if (found) return found;
    for (const make of MADE_HERE) {
      const made = await make(held, name, params);
      if (made) return made;
    }
    throw new NotInFile("This file does not hold that; open the text with regard look.");
  };
  return { kind: "file", ask };
}

/** A question as a text that is the same wherever it is made: names sorted, no spaces, nothing that is null. */
function question(name, params) {
  return name + sorted({ ...params, progress: null });
}

function sorted(value) {
  if (Array.isArray(value)) return `[${value.map(sorted).join(",")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const names = Object.keys(value)
    .filter((name) => value[name] !== null && value[name] !== undefined)
    .sort();
  return `{${names.map((name) => `${JSON.stringify(name)}:${sorted(value[name])}`).join(",")}}`;
}
