// The probabilities of the generated tokens as bars, one per step.

import { button, element } from "../../lib/element.js";
import { formatNumber, tokenLabel } from "../../lib/format.js";

const MAX_LABELED_STEPS = 40; // longer strips have no labels

/**
 * @param {Array<{position: number, text: string, probability: number}>} steps
 * @param {(position: number) => void} onSelect
 */
export function probabilityStrip(steps, onSelect) {
  const hasLabels = steps.length <= MAX_LABELED_STEPS;
  const bars = steps.map(({ position, text, probability }) => {
    const fill = element("span", { class: "probability-bar" });
    fill.style.height = `${100 * probability}%`;
    const label = `${tokenLabel(text)}, token ${position}: probability ${formatNumber(probability, 3)}`;
    const node = button("", () => onSelect(position), {
      class: "probability-step",
      title: label,
      "aria-label": label,
      "data-step": position,
    });
    node.append(
      element("span", { class: "probability-track" }, fill),
      hasLabels ? element("span", { class: "probability-token" }, tokenLabel(text)) : "",
    );
    return node;
  });
  const node = element(
    "div",
    { class: "probability-strip", role: "group", "aria-label": "Probabilities of the generated tokens" },
    bars,
  );
  /** @param {number} position */
  const mark = (position) => {
    for (const bar of bars) {
      const step = Number(bar.dataset.step);
      bar.setAttribute("aria-current", String(step === position));
      bar.classList.toggle("is-future", step > position);
    }
  };
  return Object.assign(node, { mark });
}
