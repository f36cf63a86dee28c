// Notices above the views: the last error, and the status of the connection.

import { button, element, replaceContent } from "../lib/element.js";

/** @import { PageContext } from "../lib/types.js" */

const ACTIONS = ["view", "serverState", "session", "layer", "head", "query", "key", "otherSession", "experiment"];

/**
 * The last error. It closes when the next action succeeds: a long request, or any request after a new selection.
 * Other responses of the failed action do not close it.
 * @param {PageContext} context
 */
export function alertBox(context) {
  const node = element("div", { class: "alert", role: "alert", hidden: true });
  let hasActed = false;
  const close = () => {
    node.hidden = true;
    replaceContent(node);
  };
  context.showError = (error) => {
    const { name, message } =
      error instanceof Error || error instanceof DOMException ? error : new Error(String(error));
    if (name === "AbortError") return;
    hasActed = false;
    replaceContent(node, element("span", {}, message), button("Close", close, { class: "quiet-button" }));
    node.hidden = false;
  };
  context.onResponse = (isAction) => {
    if (!node.hidden && (isAction || hasActed)) close();
  };
  context.store.subscribe((_, changed) => {
    if (ACTIONS.some((name) => changed.has(name))) hasActed = true;
  });
  return node;
}

/**
 * The notice of a lost server, with the command that starts it. It is hidden while the server responds.
 * @param {PageContext} context
 */
export function connectionNotice(context) {
  const node = element("div", { class: "connection-note", role: "status", hidden: true });
  const command = element("code", {}, `regard explore --port ${location.port}`);
  const messages = {
    lost: () => [
      element("b", {}, "The server does not respond. "),
      "If it was stopped, start it again, for example with ",
      command,
      ". This page reconnects automatically when the server is back at this address. ",
      "If the server prints another address, open that one.",
    ],
    other: () => [
      element("b", {}, "Another server responds here. "),
      "Either the explorer was restarted with another key, or another program uses the port. ",
      "Open the address printed by ",
      element("code", {}, "regard explore"),
      ".",
    ],
  };
  let currentStatus = "";
  context.showConnectionStatus = (status) => {
    if (status === currentStatus) return;
    currentStatus = status;
    node.hidden = status === "back";
    replaceContent(node, status === "back" ? "" : element("span", {}, messages[status]()));
    if (status === "back") context.announce("The server is back.");
  };
  return node;
}
