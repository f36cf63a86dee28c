// How sure a model was of each token that it added: a bar a step, as high as its probability.

import { button, element } from "./element.js";
import { label, number } from "./format.js";

const ROOM_FOR_WORDS = 40; // steps up to which tokens are written

/**
 * @param {Array<{position: number, text: string, probability: number}>} steps
 * @param {(position: number) => void} go
 */
export function sureStrip(steps, go) {
  const hasWords = steps.length <= ROOM_FOR_WORDS;
  const bars = steps.map(({ position, text, probability }) => {
    const fill = element("span", { class: "sure-bar" });
    fill.style.height = `${100 * probability}%`;
    const words = `${label(text)}, token ${position}: probability ${number(probability, 3)}`;
    const node = button("", () => go(position), {
      class: "sure",
      title: words,
      "aria-label": words,
      "data-step": position,
    });
    node.append(
      element("span", { class: "sure-track" }, fill),
      hasWords ? element("span", { class: "sure-word" }, label(text)) : "",
    );
    return node;
  });
  const node = element(
    "div",
    { class: "sure-strip", role: "group", "aria-label": "The probability of each added token" },
    bars,
  );
  node.mark = (position) => {
    for (const each of bars) {
      const at = Number(each.dataset.step);
      each.setAttribute("aria-current", String(at === position));
      each.classList.toggle("later", at > position);
    }
  };
  return node;
}
