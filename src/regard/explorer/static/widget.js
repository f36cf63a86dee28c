// The page inside a notebook's cell: its questions go to the kernel as messages.

import { start } from "./main.js";
import { widgetSource } from "./source.js";

function render({ model, el }) {
  el.classList.add("regard-cell");
  return start(el, widgetSource(model));
}

export default { render };
