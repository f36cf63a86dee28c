// The menu that selects one of the open sessions.

import { button, element, replaceContent } from "../lib/element.js";
import { clampSelection } from "../state/selectors.js";

/** A menu of all sessions; hidden if there is only one. */
export function sessionMenu(context) {
  const { store } = context;
  const list = element("div", { class: "menu-list session-list" });
  const title = element("summary", {});
  const node = element("details", { class: "menu session-menu", hidden: true }, title, list);
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
  node.addEventListener("focusout", (event) => {
    if (event.relatedTarget && !node.contains(event.relatedTarget)) node.open = false;
  });
  context.root.addEventListener("pointerdown", (event) => {
    if (!node.contains(event.target)) node.open = false;
  });
  node.addEventListener("keydown", (event) => {
    if (event.key === "Escape") node.open = false;
  });
  draw();
  return node;
}
