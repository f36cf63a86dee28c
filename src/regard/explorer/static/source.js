// Who answers the page's questions: a server, a notebook's kernel, or the file that the page is in.
//
// Each is an object with `ask(name, params, signal) -> Promise<{values, arrays}>` and the kind of source it is.

import { fromCurves } from "./heldcost.js";
import { fromTiles } from "./offline.js";
import { fromBase64, unpack } from "./unpack.js";
import { fromForms } from "./worked.js";

const PATIENCE = 8000; // milliseconds without an answer, after which a kernel is said to be busy or gone

/** Questions by HTTP to the server at an address. */
export function httpSource(base) {
  const ask = async (name, params, signal) => {
    const answer = await fetch(new URL(`ask/${name}`, base), {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(params),
      signal,
    });
    if (!answer.ok) throw new Error(await reason(answer));
    return unpack(await answer.arrayBuffer());
  };
  return { kind: "server", ask };
}

async function reason(answer) {
  try {
    return (await answer.json()).error;
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

const MADE_HERE = [fromTiles, fromCurves, fromForms]; // answers that the page can make of those in the file

/**
 * Answers that came with the file, and what can be made of them.
 * @param {Object<string, string>} answers packed answers in base64 by `question`
 */
export function fileSource(answers) {
  const held = async (name, params) => {
    const packed = answers[question(name, params)];
    return packed === undefined ? null : unpack(fromBase64(packed));
  };
  const ask = async (name, params) => {
    const found = await held(name, params);
    if (found) return found;
    for (const make of MADE_HERE) {
      const made = await make(held, name, params);
      if (made) return made;
    }
    throw new Error("This file does not hold that; open the text with regard look.");
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
