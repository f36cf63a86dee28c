// The size of the model whose cost is looked at: chosen by name, or typed.

import { element, select } from "./element.js";

const OWN = "own";
const FIELDS = [
  ["width", "Width", 16, 65536],
  ["heads", "Heads", 1, 256],
  ["layers", "Layers", 1, 400],
  ["feed_forward", "Feed-forward", 16, 262144],
];

/**
 * @param {Array<Object>} sizes models with a title; a file holds the curves of these alone
 * @param {Object} model the size that is meant, which is changed here
 * @param {boolean} isFree whether any size can be typed
 * @param {() => void} change
 */
export function sizeChooser(sizes, model, isFree, change) {
  const named = sizes.map(({ title }, n) => [n, title]);
  const chosen = sizes.findIndex((each) => isSame(each, model));
  const names = select("Model", isFree ? [...named, [OWN, "of my own"]] : named, chosen < 0 ? OWN : chosen, (n) => {
    if (n === OWN) return;
    const { title, ...size } = sizes[n];
    Object.assign(model, size);
    for (const field of fields) field.put();
    change();
  });
  const typed = () => {
    const now = sizes.findIndex((each) => isSame(each, model));
    names.value = now < 0 ? OWN : String(now);
    change();
  };
  const fields = isFree ? [...FIELDS.map((each) => numberField(each, model, typed)), gatedField(model, typed)] : [];
  return element("div", { class: "options" }, element("label", { class: "field" }, "Model ", names), fields);
}

function isSame(one, other) {
  return [...FIELDS.map(([name]) => name), "gated"].every((name) => one[name] === other[name]);
}

function numberField([name, words, least, most], model, change) {
  const input = element("input", { type: "number", min: least, max: most, class: "short", "aria-label": words });
  input.addEventListener("input", () => {
    const typed = Math.round(Number(input.value));
    if (!(typed >= least && typed <= most)) return;
    model[name] = typed;
    change();
  });
  const node = element("label", { class: "field" }, `${words} `, input);
  node.put = () => {
    input.value = model[name];
  };
  node.put();
  return node;
}

function gatedField(model, change) {
  const box = element("input", { type: "checkbox" });
  box.addEventListener("change", () => {
    model.gated = box.checked;
    change();
  });
  const node = element("label", { class: "check", title: "a feed-forward part of three matrices" }, box, " gated");
  node.put = () => {
    box.checked = model.gated;
  };
  node.put();
  return node;
}
