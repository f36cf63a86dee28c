// The page inside a notebook's cell: its questions go to the kernel as messages.

import { element } from "./element.js";
import { start } from "./main.js";
import { widgetSource } from "./source.js";

const LATE = "The kernel does not answer: it is busy, or gone. Once it runs, run this cell again.";

function render({ model, el }) {
  const page = element("div", { class: "regard-cell" });
  const note = element("p", { class: "regard-late", role: "status", hidden: true }, LATE);
  el.append(note, page);
  const source = widgetSource(model, (isLate) => {
    note.hidden = !isLate;
  });
  const ends = [start(page, source), source.end, keepKeys(page)];
  return () => ends.forEach((end) => end());
}

/**
 * Plain keys that are pressed in the page are meant for it: in JupyterLab, two 0 would restart the kernel and two d take
 * the cell away. It leaves out elements with this attribute, and is asked before the page could say so otherwise.
 */
function keepKeys(page) {
  const tell = (event) => {
    const isPlain = !event.ctrlKey && !event.metaKey && !event.altKey;
    if (page.contains(event.target)) event.target.toggleAttribute("data-lm-suppress-shortcuts", isPlain);
  };
  window.addEventListener("keydown", tell, true);
  return () => window.removeEventListener("keydown", tell, true);
}

export default { render };
