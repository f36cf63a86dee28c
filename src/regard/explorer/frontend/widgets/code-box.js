// A box with code or LaTeX and a copy button.

import { button, element } from "../lib/element.js";

/** @import { Context } from "../lib/types.js" */

/**
 * A box with a title, the text and a copy button; null if the text is empty.
 * @param {Context} context
 * @param {string} title
 * @param {string | undefined} text
 */
export function codeBox(context, title, text) {
  if (!text) return null;
  const block = element("pre", { class: "code", tabindex: 0, "aria-label": title }, text);
  const copy = button(
    "Copy",
    async () => {
      try {
        await navigator.clipboard.writeText(text);
        copy.textContent = "Copied";
        context.announce("Copied.");
      } catch {
        getSelection()?.selectAllChildren(block); // without access to the clipboard, the user copies the selection
      }
    },
    { class: "quiet-button" },
  );
  return element(
    "div",
    { class: "code-box" },
    element("div", { class: "code-box-header" }, element("h3", {}, title), copy),
    block,
  );
}
