// Who answers the page's questions: a server, a notebook's kernel, or the file that the page is in.
//
// Each is an object with `ask(name, params, signal) -> Promise<{values, arrays}>` and the kind of source it is.

import { fromTiles } from "./offline.js";
import { fromBase64, unpack } from "./unpack.js";

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

/** Questions as messages of an anywidget model; each answer carries the number of its question. */
export function widgetSource(model) {
  const waiting = new Map();
  let last = 0;
  model.on("msg:custom", (message, buffers) => {
    const asked = waiting.get(message.id);
    if (!asked) return;
    waiting.delete(message.id);
    if (message.error) asked.reject(new Error(message.error));
    else asked.resolve(unpack(copied(buffers[0])));
  });
  const ask = (name, params) =>
    new Promise((resolve, reject) => {
      last += 1;
      waiting.set(last, { resolve, reject });
      model.send({ id: last, name, params });
    });
  return { kind: "widget", ask };
}

function copied(view) {
  const bytes = new Uint8Array(view.buffer ?? view, view.byteOffset ?? 0, view.byteLength);
  return bytes.slice().buffer; // a view may begin anywhere; arrays need multiples of 8
}

/**
 * Answers that came with the file; rows, columns and lines are put together from exact tiles.
 * @param {Object<string, string>} answers packed answers in base64 by `question`
 */
export function fileSource(answers) {
  const held = async (name, params) => {
    const packed = answers[question(name, params)];
    return packed === undefined ? null : unpack(fromBase64(packed));
  };
  const ask = async (name, params) => {
    const found = (await held(name, params)) ?? (await fromTiles(held, name, params));
    if (found) return found;
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
