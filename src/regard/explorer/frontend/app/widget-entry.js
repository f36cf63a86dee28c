// Entry point of the notebook widget: requests are messages to the kernel.

import { element } from "../lib/element.js";
import { widgetSource } from "../transport/widget-source.js";
import { startExplorer } from "./main.js";

/** @import { WidgetModel } from "../transport/widget-source.js" */

const KERNEL_BUSY_MESSAGE =
  "The kernel does not respond: it is busy or was shut down. After a shutdown, restart it and run this cell again.";

/** @param {{ model: WidgetModel, el: HTMLElement }} widget */
function render({ model, el }) {
  const page = element("div", { class: "regard-widget" });
  const notice = element("p", { class: "regard-kernel-notice", role: "status", hidden: true }, KERNEL_BUSY_MESSAGE);
  el.append(notice, page);
  const source = widgetSource(model, (isLate) => {
    notice.hidden = !isLate;
  });
  const ends = [startExplorer(page, source), source.end, suppressNotebookShortcuts(page)];
  return () => {
    for (const end of ends) end();
  };
}

/**
 * Keeps plain keys from JupyterLab, where 0 0 restarts the kernel and D D deletes the cell. JupyterLab handles a key
 * before the page can stop it, but ignores keys on elements with this attribute.
 * @param {HTMLElement} page
 */
function suppressNotebookShortcuts(page) {
  /** @param {KeyboardEvent} event */
  const setAttribute = (event) => {
    const isPlain = !event.ctrlKey && !event.metaKey && !event.altKey;
    if (!(event.target instanceof Element) || !page.contains(event.target)) return;
    event.target.toggleAttribute("data-lm-suppress-shortcuts", isPlain);
  };
  window.addEventListener("keydown", setAttribute, true);
  return () => window.removeEventListener("keydown", setAttribute, true);
}

export default { render };
