// The texts that were read in this session, to go back to one.

import { button, element, refill } from "./element.js";
import { fitting } from "./subject.js";

/** A menu of texts; it is there once there are two. */
export function textsMenu(context) {
  const { store } = context;
  const list = element("div", { class: "menu-list texts-list" });
  const title = element("summary", {});
  const node = element("details", { class: "menu texts-menu", hidden: true }, title, list);
  const choose = (id) => {
    node.open = false;
    const state = { ...store.get(), shown: id };
    store.set({ shown: id, hover: null, locked: [], heads: null, place: null, step: null, ...fitting(state) });
  };
  const draw = () => {
    const { world, shown } = store.get();
    const texts = world?.shown ?? [];
    node.hidden = texts.length < 2;
    title.textContent = `Texts ${texts.length}`;
    const item = (each) =>
      button(each.title || "a recording", () => choose(each.id), {
        "aria-current": String(each.id === shown),
        title: `${each.model || "recording"}${each.generated ? ", continued" : ""}: ${(each.text ?? each.title).slice(0, 400)}`,
      });
    refill(list, texts.map(item).reverse());
  };
  store.listen((_, changed) => {
    if (changed.has("world") || changed.has("shown")) draw();
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
