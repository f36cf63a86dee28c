// Lines to copy: code, or LaTeX.

import { button, element } from "./element.js";

/** A box with a title, the lines and a button that copies them; null if there are none. */
export function codeBox(context, title, text) {
  if (!text) return null;
  const block = element("pre", { class: "code", tabindex: 0, "aria-label": title }, text);
  const copy = button(
    "Copy",
    async () => {
      try {
        await navigator.clipboard.writeText(text);
        copy.textContent = "Copied";
        context.say("Copied.");
      } catch {
        getSelection().selectAllChildren(block); // where copying is not allowed, it is one key away
      }
    },
    { class: "quiet" },
  );
  return element(
    "div",
    { class: "code-box" },
    element("div", { class: "code-head" }, element("h3", {}, title), copy),
    block,
  );
}
