// The switch that hides the key which takes most of the weight, and the sign that it is hidden.

import { element, refill } from "./element.js";
import { percent, quoted } from "./format.js";
import { hiding, layerOf, shownOf, tokensOf } from "./subject.js";

/** @param {{hide: HTMLElement, badge: HTMLElement, levels: Object}} parts where both are, and the answer to "levels" */
export function drawHide({ store }, parts) {
  const state = store.get();
  const layer = layerOf(state);
  const { sink } = parts.levels;
  const token = sink ? quoted(tokensOf(shownOf(state), layer).columnLabels[sink.key]) : "";
  parts.badge.hidden = !hiding(state, layer, parts.levels);
  parts.badge.textContent = `renormalised without ${token}`;
  if (!sink || !layer.can_hide) return refill(parts.hide);
  const box = element("input", { type: "checkbox", onchange: () => store.set({ hide: box.checked }) });
  box.checked = state.hide;
  const title = `The weight of ${token} is set to 0, and what is left of each row is divided by its sum.`;
  return refill(
    parts.hide,
    element(
      "label",
      { class: "check", title },
      box,
      ` Hide the sink: ${token}, key ${sink.key}, which takes ${percent(sink.share)}`,
    ),
  );
}
