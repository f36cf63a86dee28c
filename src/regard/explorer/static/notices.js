// Messages above the views: one error at a time, and a server that does not answer.

import { button, element, refill } from "./element.js";

const ACTIONS = ["view", "world", "shown", "layer", "head", "query", "key", "other", "experiment"];

/**
 * The last error. It goes when it is closed, and when the next action succeeds: a long question that is answered, or any
 * question after something else was chosen. Answers that belong to the action that failed leave it.
 */
export function alertBox(context) {
  const node = element("div", { class: "alert", role: "alert", hidden: true });
  let hasActed = false;
  const close = () => {
    node.hidden = true;
    refill(node);
  };
  context.fail = (error) => {
    if (error?.name === "AbortError") return;
    hasActed = false;
    refill(node, element("span", {}, error?.message ?? String(error)), button("Close", close, { class: "quiet" }));
    node.hidden = false;
  };
  context.answered = (isAction) => {
    if (!node.hidden && (isAction || hasActed)) close();
  };
  context.store.listen((_, changed) => {
    if (ACTIONS.some((name) => changed.has(name))) hasActed = true;
  });
  return node;
}

/** Says that the server does not answer, and how to start it; it goes when the server is back. */
export function connectionNote(context) {
  const node = element("div", { class: "connection-note", role: "status", hidden: true });
  const command = element("code", {}, `regard look --port ${location.port}`);
  const words = {
    lost: () => [
      element("b", {}, "The server does not answer. "),
      "If it was stopped, start it again as before, as in ",
      command,
      ". This page goes on by itself when the server is back at this address; if it prints another address, open that one.",
    ],
    other: () => [
      element("b", {}, "Another server answers here. "),
      "It was started again with another key, or the port belongs to another program now. Open the address that ",
      element("code", {}, "regard look"),
      " printed.",
    ],
  };
  let before = "";
  context.connection = (status) => {
    if (status === before) return;
    before = status;
    node.hidden = status === "back";
    refill(node, status === "back" ? "" : element("span", {}, words[status]()));
    if (status === "back") context.say("The server is back.");
  };
  return node;
}
