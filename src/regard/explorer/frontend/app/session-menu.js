// The menu that selects one of the open sessions.

import { button, element, replaceContent } from "../lib/element.js";
import { clampSelection } from "../state/selectors.js";
import { closeOnLeave } from "./menu.js";

/** @import { PageContext, Session } from "../lib/types.js" */

/**
 * A menu of all sessions; hidden if there is only one.
 * @param {PageContext} context
 */
export function sessionMenu(context) {
  const { store } = context;
  const list = element("div", { class: "menu-list session-list" });
  const title = element("summary", {});
  const node = element("details", { class: "menu session-menu", hidden: true }, title, list);
  /** @param {number} id */
  const choose = (id) => {
    node.open = false;
    const cleared = { hoveredCell: null, pinnedTokens: [], lineHeads: null, viewport: null, generationStep: null };
    store.set({ session: id, ...cleared, ...clampSelection({ ...store.get(), session: id }) });
  };
  const draw = () => {
    const { serverState, session } = store.get();
    const sessions = serverState?.sessions ?? [];
    node.hidden = sessions.length < 2;
    title.textContent = `Texts (${sessions.length})`;
    /** @param {Session} session */
    const item = ({ id, title: name, model, generation, text }) =>
      button(name || "Recording", () => choose(id), {
        "aria-current": String(id === session),
        title: `${model || "recording"}${generation ? ", continued" : ""}: ${(text ?? name).slice(0, 400)}`,
      });
    replaceContent(list, sessions.map(item).reverse());
  };
  store.subscribe((_, changed) => {
    if (changed.has("serverState") || changed.has("session")) draw();
  });
  closeOnLeave(node, context.root);
  draw();
  return node;
}
