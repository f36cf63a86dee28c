// The data source of a notebook's widget: messages to the kernel.

import { unpack } from "./unpack.js";

/** @import { Payload, Request, Source } from "../lib/types.js" */

/**
 * The model of an anywidget.
 * @typedef {{id: string, error?: string}} Message
 * @typedef {(message: Message, buffers: Array<DataView | ArrayBuffer>) => void} MessageListener
 * @typedef {Object} WidgetModel
 * @property {(event: "msg:custom", listener: MessageListener) => void} on
 * @property {(event: "msg:custom", listener: MessageListener) => void} off
 * @property {(content: object) => void} send
 */

/**
 * @typedef {Object} PendingRequest
 * @property {(response: Payload<any, any>) => void} resolve any: the types of a response depend on its endpoint
 * @property {(error: Error) => void} reject
 * @property {ReturnType<typeof setTimeout>} timer
 */

const KERNEL_TIMEOUT_MS = 8000; // the page reports a busy kernel after this time without a response

/**
 * Requests as messages of an anywidget model. A response has the id of its request. Two views of one widget receive
 * each other's responses, so ids begin with a random prefix.
 * @param {WidgetModel} model
 * @param {(isLate: boolean) => void} onLate called when the kernel is late, and when it responds again
 * @returns {Source & {end(): void}}
 */
export function widgetSource(model, onLate = () => {}) {
  /** @type {Map<string, PendingRequest>} */
  const pendingById = new Map();
  const prefix = Math.random().toString(36).slice(2);
  let lastId = 0;
  /** @param {string} id */
  const settle = (id) => {
    const pending = pendingById.get(id);
    if (!pending) return null;
    pendingById.delete(id);
    clearTimeout(pending.timer);
    onLate(false);
    return pending;
  };
  /** @type {MessageListener} */
  const onMessage = (message, buffers) => {
    const pending = settle(message.id);
    if (message.error) pending?.reject(new Error(message.error));
    else pending?.resolve(unpack(copyToAlignedBuffer(buffers[0])));
  };
  model.on("msg:custom", onMessage);
  /** @type {Request} */
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

/**
 * The bytes as a new buffer: typed arrays need offsets that are multiples of 8.
 * @param {DataView | ArrayBuffer} view
 */
function copyToAlignedBuffer(view) {
  const bytes = ArrayBuffer.isView(view)
    ? new Uint8Array(view.buffer, view.byteOffset, view.byteLength)
    : new Uint8Array(view);
  return Uint8Array.from(bytes).buffer;
}
